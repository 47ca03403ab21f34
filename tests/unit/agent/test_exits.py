"""Why a worker ended, told by what is known of its process."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from holdfast.agent.events import Ending
from holdfast.agent.exits import EXIT_DETAIL_CHARACTERS_MAX, classify, own_words
from holdfast.wire.reports import Exit, ExitKind


def why(ending: Ending, **known: Any) -> Exit:
    return classify(ending, **{"stopping": False, "hung": False, "introduced": True, **known})


@pytest.mark.parametrize(
    ("ending", "known", "kind"),
    [
        (Ending(code=0, word="done"), {}, ExitKind.DONE),
        (Ending(code=0, word="done"), {"stopping": True}, ExitKind.DONE),
        (Ending(code=0, word="left"), {"stopping": True}, ExitKind.LEFT),
        (Ending(code=1, word="done"), {}, ExitKind.ERROR),
        (Ending(signal=15, word="left"), {"stopping": True}, ExitKind.LEFT),
        (Ending(signal=9, word="done"), {"stopping": True, "hung": True}, ExitKind.DONE),
        (Ending(signal=15, word="left", abandoned=True), {}, ExitKind.LEFT),
        (Ending(signal=9, word="left"), {}, ExitKind.SIGNAL),
        (Ending(signal=11, word="done"), {"stopping": True}, ExitKind.STOPPED),
        (Ending(code=1, word="refused"), {}, ExitKind.REFUSED),
        (Ending(signal=9, word="refused"), {}, ExitKind.SIGNAL),
        (Ending(code=0), {}, ExitKind.ERROR),
        (Ending(code=0), {"introduced": False}, ExitKind.DONE),
        (Ending(code=0), {"stopping": True}, ExitKind.STOPPED),
        (Ending(signal=15), {"stopping": True}, ExitKind.STOPPED),
        (Ending(signal=9), {"hung": True, "stopping": True}, ExitKind.HUNG),
        (Ending(signal=9), {}, ExitKind.SIGNAL),
        (Ending(signal=15), {}, ExitKind.SIGNAL),
        (Ending(signal=11), {}, ExitKind.ERROR),
        (Ending(signal=6), {}, ExitKind.ERROR),
        (Ending(signal=9, over_memory=True), {}, ExitKind.MEMORY),
        (Ending(code=137, over_memory=True), {}, ExitKind.MEMORY),
        (Ending(), {}, ExitKind.LOST),
        (Ending(signal=15, abandoned=True), {}, ExitKind.STOPPED),
        (Ending(fault="no such bundle"), {}, ExitKind.ERROR),
    ],
)
def test_an_end_has_the_kind_that_its_facts_say(
    ending: Ending, known: dict[str, bool], kind: ExitKind
) -> None:
    assert why(ending, **known).kind is kind


@pytest.mark.parametrize(
    "last",
    [
        "MemoryError",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8. GiB",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes",
        "OSError: [Errno 12] Cannot allocate memory",
        "terminate called after throwing an instance of 'std::bad_alloc'",
    ],
)
def test_a_refused_allocation_is_a_lack_of_memory(last: str) -> None:
    tail = f"Traceback (most recent call last):\n  File 'x', line 1\n{last}\n"
    assert why(Ending(code=1, stderr_tail=tail)).kind is ExitKind.MEMORY


def test_a_lack_of_memory_that_was_survived_is_not_the_reason() -> None:
    tail = "MemoryError\n" + "Traceback (most recent call last):\n  a\n  b\n  c\nValueError: no\n"
    assert why(Ending(code=1, stderr_tail=tail)).kind is ExitKind.ERROR


def test_the_users_traceback_comes_first_and_noise_before_it_is_left_out() -> None:
    tail = "step 1\nstep 2\nTraceback (most recent call last):\n  File 'x'\nValueError: no\n"
    detail = why(Ending(code=1, stderr_tail=tail)).detail
    assert detail.startswith("Traceback (most recent call last):")
    assert detail.endswith("ValueError: no\nit ended with status 1")


def test_a_chain_of_exceptions_is_shown_whole_and_an_older_one_is_not() -> None:
    script = (
        "import traceback\n"
        "try: 1 / 0\n"
        "except ZeroDivisionError: traceback.print_exc()\n"
        "try:\n"
        "    try: {}['first']\n"
        "    except KeyError as error: raise ValueError('second') from error\n"
        "except ValueError: raise OSError('third')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    words = own_words(done.stderr)
    assert "KeyError: 'first'" in words
    assert "ValueError: second" in words
    assert words.endswith("OSError: third")
    assert "ZeroDivisionError" not in words


def test_without_a_traceback_the_last_lines_are_shown() -> None:
    tail = "\n".join(f"line {number}" for number in range(100))
    detail = why(Ending(code=3, stderr_tail=tail)).detail
    assert "line 99" in detail
    assert "line 50" not in detail


@pytest.mark.parametrize(
    ("tail", "kind"),
    [
        (
            '  File "train.py", line 3\n    def f(:\n          ^\nSyntaxError: bad\n',
            ExitKind.REFUSED,
        ),
        (
            'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n'
            "ModuleNotFoundError: No module named 'x'\n",
            ExitKind.REFUSED,
        ),
        (
            "python: can't open file '/x/y.py': [Errno 2] No such file or directory",
            ExitKind.REFUSED,
        ),
        ('Traceback (most recent call last):\n  File "t.py"\nValueError: no\n', ExitKind.ERROR),
    ],
)
def test_code_that_cannot_run_anywhere_is_not_tried_again(tail: str, kind: ExitKind) -> None:
    ending = Ending(code=1, stderr_tail=tail)
    assert why(ending, stepped=False, introduced=False).kind is kind
    # Of code that has made a step, and of a replica, it may be the machine's fault.
    assert why(ending, stepped=True).kind is ExitKind.ERROR
    assert why(ending, stepped=False, serves=True).kind is ExitKind.ERROR


def test_a_long_traceback_keeps_its_ends() -> None:
    tail = "Traceback (most recent call last):\n" + "x" * 100_000 + "\nValueError: no"
    detail = why(Ending(code=1, stderr_tail=tail)).detail
    assert len(detail) <= EXIT_DETAIL_CHARACTERS_MAX
    assert detail.startswith("Traceback")
    assert "ValueError: no" in detail


@pytest.mark.parametrize(
    ("had", "most", "sizes"),
    [
        (512_000_000, 500_000_000, "it had 512.0 MB, the limit is 500 MB"),
        ((300 << 20) + 300_000, 300 << 20, "it had 300.3 MiB, the limit is 300 MiB"),
    ],
)
def test_an_end_at_the_memory_limit_says_what_it_had_and_which_key_to_change(
    had: int, most: int, sizes: str
) -> None:
    ending = Ending(signal=9, over_memory=True, memory_bytes=had, memory_bytes_max=most)
    found = why(ending)
    assert found.kind is ExitKind.MEMORY
    assert f"it met its memory limit: {sizes}; raise `memory`" in found.detail
    assert "holdfast submit" in found.detail
    assert "holdfast serve" in why(ending, serves=True).detail
    # Also where another end was under way.
    assert sizes in why(ending, stopping=True).detail


def test_a_kill_while_the_machine_was_short_of_memory_says_so() -> None:
    assert "ran out of memory" in why(Ending(signal=9, machine_short=True)).detail
