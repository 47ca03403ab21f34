"""How a story is told: each traceback once, in lines of its own."""

from __future__ import annotations

import re
from io import StringIO

import pytest
from rich.console import Console

from holdfast.cli import output
from holdfast.cli.jobs import why
from holdfast.wire.history import HistoryEntry

TRACE = (
    "Traceback (most recent call last):\n"
    '  File "failing.py", line 3, in <module>\n'
    '    raise ValueError("no number")\n'
    "ValueError: no number\n"
    "it ended with status 1"
)
CAUSE = "ValueError: no number (failing.py, line 3)"
STORY = [
    HistoryEntry(1.0, 1, "UnplaceWorker", f"worker 1 is gone (error): {TRACE}"),
    HistoryEntry(2.0, 1, "PlaceWorker", "worker 2: starts with 1 worker"),
    HistoryEntry(3.0, 1, "UnplaceWorker", f"worker 2 is gone (error): {TRACE}"),
    HistoryEntry(4.0, 1, "SetStatus", f"{TRACE}\n(worker 2; the same twice before its first step)"),
]


def test_a_traceback_is_told_once_and_then_its_cause() -> None:
    reasons = [line.reason for line in why.history_lines(STORY, every=False)]
    assert reasons == [
        STORY[0].reason,
        STORY[1].reason,
        f"worker 2 is gone (error): {CAUSE}",
        f"{CAUSE} (worker 2; the same twice before its first step)",
    ]
    assert [line.reason for line in why.history_lines(STORY, every=True)] == [
        one.reason for one in STORY
    ]


def test_another_traceback_is_told_whole() -> None:
    other = HistoryEntry(
        5.0, 1, "UnplaceWorker", STORY[0].reason.replace("ValueError", "TypeError")
    )
    assert why.history_lines([*STORY, other], every=False)[-1].reason == other.reason


def test_a_traceback_begins_in_a_line_of_its_own_and_no_line_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = StringIO()
    console = Console(file=text, width=80, force_terminal=True, no_color=True, highlight=False)
    monkeypatch.setattr(output, "out", lambda: console)
    why.show_last(why.history_lines(STORY, every=False), 50, "broken")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text.getvalue()).splitlines()
    assert max(map(len, lines)) <= 80
    at = next(number for number, line in enumerate(lines) if "gone" in line)
    assert lines[at].endswith("worker 1 is gone (error):")
    assert lines[at + 1].strip() == "Traceback (most recent call last):"
