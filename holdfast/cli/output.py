"""How results and errors look: for a person on a terminal, and as JSON for a program.

Results go to stdout, everything else to stderr. With `--json` stdout holds one JSON document and
nothing else, and an error is one JSON document on stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast.wire.errors import BugError, HoldfastError, RetryError

_INDENT: Final = 6  # of what stands behind `error`, `why` and `fix`


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
    from holdfast.cli import listing

    rows = [
        row for line in words.splitlines() for row in listing.broken(line, console.width - _INDENT)
    ]
    return f"\n{'':{_INDENT}}".join(rows)


def kind(error: HoldfastError) -> str:
    """Which branch of the tree of errors: may the caller try again?"""
    if isinstance(error, RetryError):
        return "retry"
    return "bug" if isinstance(error, BugError) else "terminal"
