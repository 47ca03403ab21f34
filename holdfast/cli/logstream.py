"""Lines of a job's workers on stdout: `holdfast logs`. Where they come from: `client.logs`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.text import Text

from holdfast.cli import output

if TYPE_CHECKING:
    from holdfast.client.logs import LogLine

_STYLES: Final = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green")


@dataclass
class Printer:
    """Puts lines to stdout, with their worker in front where there are several. `live`: somebody
    looks on, so each line is put there at once."""

    prefix: bool
    live: bool = False
    lines: int = 0

    def show(self, lines: Iterable[LogLine]) -> None:
        for line in lines:
            self._line(line.worker, line.text)
            if self.live:
                sys.stdout.flush()
        sys.stdout.flush()

    def _line(self, worker: int, words: str) -> None:
        self.lines += 1
        if not self.prefix:
            sys.stdout.write(f"{words}\n")
        elif sys.stdout.isatty():
            style = _STYLES[worker % len(_STYLES)]
            output.out().print(Text(f"{worker:>3} ", style=style), end="")
            # As it is: a worker may write colours of its own.
            output.out().file.write(f"{words}\n")
        else:
            sys.stdout.write(f"{worker:>3} {words}\n")
