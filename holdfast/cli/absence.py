"""Who should decide and is not there, told beside a command's result; and what a command that waits
says meanwhile. Who it is: `client.absence`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich.markup import escape
from rich.text import Text

from holdfast.cli import output
from holdfast.client.absence import (
    COORDINATOR,
    ROLLOUT_CONTROLLER,
    Absence,
    Progress,
    WaitReporter,
    absent,
    since,
    warnings,
)
from holdfast.wire.limits import WAIT_SAYS_S

if TYPE_CHECKING:
    from holdfast.cluster import Cluster
    from holdfast.launch.health import MissingProcess

__all__ = [
    "COORDINATOR",
    "ROLLOUT_CONTROLLER",
    "Absence",
    "Progress",
    "ProgressLines",
    "WaitReporter",
    "absent",
    "progress",
    "sentences",
    "since",
    "warn",
    "warnings",
]
_SAY_AGAIN_S: Final = 5.0


def sentences(cluster: Cluster, found: Sequence[MissingProcess] | None = None) -> list[str]:
    """What should run on this machine and does not, each in a sentence."""
    from holdfast.launch.health import missing

    now_s = time.time()
    known = missing(cluster) if found is None else found
    return [one.sentence(now_s, since(one.since_s)) for one in known]


def warn(lines: Sequence[str]) -> None:
    """Beside the result, on stderr."""
    for line in lines:
        output.say(output.err(), line, style="yellow")


class ProgressLines:
    """What is waited for as lines on stderr: after a moment, and when it changes. On a terminal
    nothing: whoever waits shows it himself."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began_s = clock()
        self._said, self._said_s = "", 0.0
        self._silent = sys.stderr.isatty()

    def __call__(self, told: str) -> None:
        now_s = self._clock()
        if self._silent or now_s < self._began_s + WAIT_SAYS_S or told == self._said:
            return
        if not self._said or now_s >= self._said_s + _SAY_AGAIN_S:
            self._said, self._said_s = told, now_s
            output.err().print(Text(f"waiting: {told}", style="dim"))


@contextmanager
def progress(name: str) -> Iterator[Progress]:
    """A line that is written again, on a terminal; elsewhere lines, of what lasts."""
    lines = ProgressLines()
    with output.err().status(name) as shown:

        def say(what: str) -> None:
            shown.update(escape(f"{name}: {what}"))
            lines(what)

        yield say
