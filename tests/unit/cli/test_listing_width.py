"""Which columns of a table are shown in a terminal of which width."""

from __future__ import annotations

import re
from io import StringIO

import pytest
from rich.console import Console

from holdfast.cli import output

COLUMNS = ["job", "phase", "queue", "priority", "workers", "step", "saved", "since", "why"]
DROP = ("queue", "priority", "since", "saved", "step")
WHY = (
    "waits for 1 cpu and 1 gpu; job `serve.digits` holds it; `holdfast scale digits 1` frees it;"
    " it is 1st in queue default"
)
ROW = ("resnet-large", "queued", "research", 10, "0/4", "1,200", "1,000", "3 min", WHY)


def shown(monkeypatch: pytest.MonkeyPatch, width: int) -> str:
    text = StringIO()
    console = Console(file=text, width=width, force_terminal=True, no_color=True, highlight=False)
    monkeypatch.setattr(output, "out", lambda: console)
    output.show_table(COLUMNS, [ROW], drop=DROP)
    return re.sub(r"\x1b\[[0-9;]*m", "", text.getvalue())


def words(text: str) -> str:
    """The last column, put together again."""
    return " ".join(text.split())


@pytest.mark.parametrize("width", [80, 100])
def test_at_80_columns_the_reason_is_whole_and_lesser_columns_go(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    text = shown(monkeypatch, width)
    assert max(map(len, text.splitlines())) <= width
    assert "queue" not in text.splitlines()[0]
    assert "resnet-large" in text
    for piece in ("`serve.digits`", "scale", "frees", "1st"):
        assert piece in words(text), text


def test_a_wide_terminal_shows_every_column_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    head, row = shown(monkeypatch, 220).splitlines()
    assert head.split() == COLUMNS
    assert WHY in row


def test_columns_go_in_the_order_that_was_said_and_only_as_many_as_it_takes() -> None:
    widths = [12, 8, 8, 8, 7, 6, 6, 6, 100]

    def kept(width: int) -> list[str]:
        return [COLUMNS[at] for at in output.fitting(COLUMNS, widths, width, DROP)]

    assert kept(400) == COLUMNS
    assert kept(120) == [name for name in COLUMNS if name != "queue"]
    assert kept(110) == [name for name in COLUMNS if name not in DROP[:2]]
    assert kept(40) == ["job", "phase", "workers", "why"]


def test_a_short_reason_drops_nothing() -> None:
    widths = [12, 8, 8, 8, 7, 6, 6, 6, 3]
    assert output.fitting(COLUMNS, widths, 80, DROP) == list(range(9))


def test_a_line_is_broken_between_commands_and_between_words_and_never_within_one() -> None:
    hint = "next: holdfast services times   holdfast rollout times VERSION   holdfast why times"
    assert output.wrapped(hint, 80) == [
        "next: holdfast services times   holdfast rollout times VERSION",
        "      holdfast why times",
    ]
    assert output.wrapped(hint, 100) == [hint]
    cause = "No such file or directory: 'numbers.csv' (missing.py, line 2)"
    assert output.wrapped(f"  {cause}", 40) == [
        "  No such file or directory:",
        "  'numbers.csv' (missing.py, line 2)",
    ]
    path = "/data/" + "long/" * 20
    assert output.wrapped(f"logs {path}", 40) == ["logs", path], "a path can be copied whole"
