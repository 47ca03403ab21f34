"""How results and errors look: for a person on a terminal, and as JSON for a program.

Results go to stdout, everything else to stderr. With `--json` stdout holds one JSON document and
nothing else, and an error is one JSON document on stderr. The last column of a table is cut to the
terminal's edge; without a terminal nothing is cut.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from io import StringIO
from typing import Any, Final

from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from holdfast.wire.errors import BugError, HoldfastError, RetryError

_INDENT: Final = 6  # of what stands behind `error`, `why` and `fix`
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


@cache
def out() -> Console:
    """Where results go."""
    return Console(highlight=False, soft_wrap=True)


@cache
def err() -> Console:
    """Where errors and progress go."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def show_json(document: Mapping[str, Any] | Sequence[Any]) -> None:
    """The one document of a command with `--json`."""
    sys.stdout.write(json.dumps(document, indent=2, default=str, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> Table:
    """A plain table, without a head if `columns` is empty. Cells are never read as markup."""
    grid = Table(
        title=title or None,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        show_header=bool(columns),
        header_style="dim",
    )
    for column in columns:
        grid.add_column(column, overflow="fold")
    for row in rows:
        grid.add_row(*(escape(str(cell)) for cell in row))
    return grid


def show_error(error: HoldfastError, *, as_json: bool) -> None:
    """What happened, why, and the command that fixes it; no traceback."""
    if as_json:
        document = {
            "error": type(error).__name__,
            "kind": kind(error),
            "what": error.what,
            "why": error.why,
            "fix": error.fix,
            "story": list(error.story),
            "exit_code": error.exit_code,
        }
        sys.stderr.write(json.dumps(document, ensure_ascii=False) + "\n")
        return
    console = err()
    console.print(f"[bold red]error[/] {escape(_hanging(error.what, console))}")
    if error.why:
        console.print(f"  [dim]why[/] {escape(_hanging(error.why, console))}")
    if error.fix:
        # In one line, for the terminal to break: so a command can be copied.
        console.print(f"  [bold green]fix[/] {escape(error.fix)}")
    for event in error.story:
        console.print(f"   [dim]·[/] {escape(event)}")


def _hanging(words: str, console: Console) -> str:
    """On a terminal, broken between words, with all but the first line below the first word."""
    if not console.is_terminal:
        return words

    rows = [row for line in words.splitlines() for row in wrapped(line, console.width - _INDENT)]
    return f"\n{'':{_INDENT}}".join(rows)


def kind(error: HoldfastError) -> str:
    """Which branch of the tree of errors: may the caller try again?"""
    if isinstance(error, RetryError):
        return "retry"
    return "bug" if isinstance(error, BugError) else "terminal"


def phase_text(name: str) -> Text:
    """A phase in its colour."""
    return Text(name, style=PHASES.get(name.strip(), ""))


def with_own_paths(words: str) -> str:
    """The same words, with the user's files named as in his own folder: not where an agent has
    unpacked them."""
    return _UNPACKED.sub("", words)


def show_table(
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
    console = out()
    if console.is_terminal:
        kept = fitting(columns, widths, console.width, drop)
        columns = [columns[at] for at in kept]
        widths = [widths[at] for at in kept]
        cells = [[row[at] for at in kept] for row in cells]
        # What the others leave of the line, and never less than its head.
        space = console.width - sum(widths[:-1]) - _GAP * (len(widths) - 1)
        wraps = (wraps or bool(drop)) and widths[-1] > space >= _WRAPPED_MIN
        widths[-1] = max(len(columns[-1]), min(widths[-1], space))
    grid = Table(box=None, pad_edge=False, header_style="dim", show_header=any(columns))
    for column, width in zip(columns, widths, strict=True):
        side: JustifyMethod = "right" if column in right else "left"
        folds = wraps and console.is_terminal and column == columns[-1]
        grid.add_column(
            column,
            justify=side,
            no_wrap=not folds,
            overflow="fold" if folds else "ellipsis",
            width=width,
        )
    for row in cells:
        grid.add_row(*row)
    _print_grid(grid)


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


def show_facts(rows: Iterable[tuple[str, object]]) -> None:
    """Print pairs, the names dim; a value that is empty is left out."""
    grid = Table(box=None, pad_edge=False, show_header=False)
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        if value not in (None, ""):
            grid.add_row(name, value if isinstance(value, Text) else Text(str(value)))
    _print_grid(grid)


def _print_grid(grid: Table) -> None:
    console = out()
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
    say(err(), words, style="dim")


def done(what: str, next_: str = "") -> None:
    """What a command has done, and the command that may come next."""
    out().print(what, markup=False)
    if next_:
        note(f"next: {next_}")


def say(console: Console, words: str, *, style: str = "", indent: int = 0) -> None:
    """Print lines for people: broken between words on a terminal, whole elsewhere."""
    for line in words.splitlines() or [""]:
        rows = wrapped(line, console.width - indent) if console.is_terminal else [line]
        for row in rows:
            console.print(Text(f"{'':{indent}}{row}", style=style))


def wrapped(line: str, width: int) -> list[str]:
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
    space = max(_WRAPPED_MIN, width - len(lead))
    return [
        lead + row
        for part in parts
        for row in textwrap.wrap(part, space, break_long_words=False, break_on_hyphens=False)
        or [""]
    ]
