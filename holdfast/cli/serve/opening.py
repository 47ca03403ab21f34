"""What the commands about services share: saying what is waited for, and what was done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.markup import escape

from holdfast.cli import absence, listing, output

if TYPE_CHECKING:
    from holdfast.client.absence import Progress


@contextmanager
def progress(name: str) -> Iterator[Progress]:
    """A line that is written again, on a terminal; elsewhere lines, of what lasts."""
    lines = absence.Lines()
    with output.err().status(name) as shown:

        def say(what: str) -> None:
            shown.update(escape(f"{name}: {what}"))
            lines(what)

        yield say


def done(what: str, next_: str = "") -> None:
    output.out().print(what, markup=False)
    if next_:
        listing.note(f"next: {next_}")
