"""The screen that pictures are taken of shows what a terminal would."""

from __future__ import annotations

from tests.terminal.capturing import normalized
from tests.terminal.screen import Screen


def test_a_line_that_is_drawn_again_is_shown_as_it_was_last() -> None:
    screen = Screen(10)
    for text in (
        "one\r\n",
        "two\x1b[1m!\x1b[0m\r",
        "\x1b[2Kthree\r\n",
        "0123456789ab\x1b",
        "[1A\r*",
    ):
        screen.feed(text)
    assert screen.lines == ["one", "three", "*123456789", "ab"]


def test_a_panel_that_is_taken_away_leaves_nothing() -> None:
    screen = Screen(20)
    screen.feed("kept\r\n╭─╮\r\n│x│\r\n╰─╯\r\x1b[2K\x1b[1A\x1b[2K\x1b[1A\x1b[2K\x1b[?25h")
    assert screen.lines == ["kept"]


def test_what_differs_between_two_runs_is_replaced_also_where_the_edge_breaks_it() -> None:
    lines = ["12:34:56 in 1m02s (1.5 steps/s)", "logs /tmp/ab", "c/x", "0" * 40, "0" * 24 + " end"]
    assert normalized(lines, {"/tmp/abc": "FOLDER"}) == (
        "HH:MM:SS in TIME\nlogs FOLDER/x\nDIGEST end\n"
    )
