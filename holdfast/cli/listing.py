"""Tables for people: columns as wide as they must be, the last one cut to the terminal's edge.

Without a terminal nothing is cut: whoever reads it there can cut it.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import Final

from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from holdfast.cli import output
from holdfast.client.texts import one_line

__all__ = ["PHASES", "facts", "fitting", "note", "one_line", "own_paths", "phase", "show"]

# Without a terminal: wider than any line that we write.
_WIDE: Final = 4_000
_GAP: Final = 2  # between columns
# The last column says most: others are left out until it has so much, or all that it needs.
_LAST_ENOUGH: Final = 48
# Narrower than this, words are cut rather than wrapped to a column of syllables.
_WRAPPED_MIN: Final = 16
_NEXT: Final = "next: "  # commands: those of the next row stand below the first
_UNPACKED: Final = re.compile(r"/[^\s\"']*/(?:bundles/[0-9a-f]{64}/files|workers/[^\s\"'/]+/code)/")
PHASES: Final = {
    "queued": "yellow",
    "admitted": "cyan",
    "running": "green",
    "shrinking": "cyan",
    "growing": "cyan",
    "paused": "yellow",
    "succeeded": "bold green",
    "failed": "bold red",
    "stopped": "dim",
}


def phase(name: str) -> Text:
    """A phase in its colour."""
    return Text(name, style=PHASES.get(name.strip(), ""))


def own_paths(words: str) -> str:
    """The same words, with the user's files named as in his own folder: not where an agent has
    unpacked them."""
    return _UNPACKED.sub("", words)


def show(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Sequence[str] = (),
    drop: Sequence[str] = (),
    wraps: bool = False,
) -> None:
    """Print a table to stdout. Cells are text or `Text`, never markup. `drop`: columns that are
    left out, in this order, where a terminal is too narrow for the last one; what is then still
    too long is wrapped, as it is with `wraps` alone."""
    cells = [[cell if isinstance(cell, Text) else Text(str(cell)) for cell in row] for row in rows]
    widths = [
        max([len(column), *(row[at].cell_len for row in cells)])
        for at, column in enumerate(columns)
    ]
    console = output.out()
    if console.is_terminal:
        kept = fitting(columns, widths, console.width, drop)
        columns = [columns[at] for at in kept]
        widths = [widths[at] for at in kept]
        cells = [[row[at] for at in kept] for row in cells]
        # What the others leave of the line, and never less than its head.
        room = console.width - sum(widths[:-1]) - _GAP * (len(widths) - 1)
        wraps = (wraps or bool(drop)) and widths[-1] > room >= _WRAPPED_MIN
        widths[-1] = max(len(columns[-1]), min(widths[-1], room))
    grid = Table(box=None, pad_edge=False, header_style="dim", show_header=any(columns))
    for column, width in zip(columns, widths, strict=True):
        side: JustifyMethod = "right" if column in right else "left"
        wrapped = wraps and console.is_terminal and column == columns[-1]
        grid.add_column(
            column,
            justify=side,
            no_wrap=not wrapped,
            overflow="fold" if wrapped else "ellipsis",
            width=width,
        )
    for row in cells:
        grid.add_row(*row)
    _print(grid)


def fitting(
    columns: Sequence[str], widths: Sequence[int], width: int, drop: Sequence[str]
) -> list[int]:
    """The columns that are shown in a terminal of this width: all of them if they fit; else without
    those of `drop`, as many as it takes to leave the last one room enough."""
    kept = list(range(len(columns)))
    for name in (*drop, ""):
        others = sum(widths[at] for at in kept[:-1]) + _GAP * (len(kept) - 1)
        if not name or others + min(widths[-1], _LAST_ENOUGH) <= width:
            break
        kept = [at for at in kept if columns[at] != name]
    return kept


def facts(rows: Iterable[tuple[str, object]]) -> None:
    """Print pairs, the names dim; a value that is empty is left out."""
    grid = Table(box=None, pad_edge=False, show_header=False)
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        if value not in (None, ""):
            grid.add_row(name, value if isinstance(value, Text) else Text(str(value)))
    _print(grid)


def _print(grid: Table) -> None:
    console = output.out()
    if console.is_terminal:
        console.print(grid, soft_wrap=False)
        return
    wide = Console(file=StringIO(), width=_WIDE, highlight=False)
    with wide.capture() as captured:
        wide.print(grid)
    # The padding of the last column is for terminals.
    for line in captured.get().splitlines():
        console.print(Text(line.rstrip()))


def note(words: str) -> None:
    """A remark beside the result, on stderr."""
    say(output.err(), words, style="dim")


def say(console: Console, words: str, *, style: str = "", indent: int = 0) -> None:
    """Print lines for people: broken between words on a terminal, whole elsewhere."""
    for line in words.splitlines() or [""]:
        rows = broken(line, console.width - indent) if console.is_terminal else [line]
        for row in rows:
            console.print(Text(f"{'':{indent}}{row}", style=style))


def broken(line: str, width: int) -> list[str]:
    """The line in rows of that width. Commands that stand beside each other, three spaces apart,
    stay whole if they can; a word that is too long stays whole in any case, for the terminal to
    break: so a path can be copied."""
    beside, rest = "   ", line.lstrip()
    lead = line[: len(line) - len(rest)]
    below = " " * len(_NEXT) if rest.startswith(_NEXT) else ""
    parts: list[str] = []
    for part in rest.split(beside):
        if parts and len(lead) + len(parts[-1]) + len(beside) + len(part) <= width:
            parts[-1] += beside + part
        else:
            parts.append(below + part if parts else part)
    room = max(_WRAPPED_MIN, width - len(lead))
    return [
        lead + row
        for part in parts
        for row in textwrap.wrap(part, room, break_long_words=False, break_on_hyphens=False) or [""]
    ]
