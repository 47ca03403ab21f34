"""Following a job from a command: news on stderr, the end as an exit code."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from rich.text import Text

from holdfast.cli import absence, listing, output
from holdfast.cli.jobs import document
from holdfast.client import texts

if TYPE_CHECKING:
    from holdfast.client import Job, JobStatus


def until_end(job: Job, *, as_json: bool = False) -> int:
    """Follow the job until it has ended; 0 if it succeeded, 1 if not."""
    shown: tuple[str, str] | None = None
    status: JobStatus | None = None
    progress = None if as_json else absence.Lines()
    try:
        for status in job.watch(steps=sys.stderr.isatty(), progress=progress):
            if not as_json and (status.phase, status.why) != shown:
                shown = (status.phase, status.why)
                _say_phase(status)
            if not status.ended and sys.stderr.isatty():
                _say_step(status)
    except KeyboardInterrupt:
        name = job.name
        listing.note(
            f"\n{name} goes on. See it: holdfast jobs {name}   end it: holdfast stop {name}"
        )
        raise
    if as_json:
        output.show_json(document(job.facts(), {}))
    return 0 if status is not None and status.succeeded else 1


def _say_phase(status: JobStatus) -> None:
    line = Text(f"{texts.clock(time.time())}  ", style="dim")
    line.append_text(listing.phase(f"{status.phase:<9}"))
    line.append(f"  {listing.own_paths(status.why.strip())}")
    output.err().print(line)


def _say_step(status: JobStatus) -> None:
    """The step, on a terminal, in one line that is written again."""
    if status.step is None:
        return
    saved = f", {status.committed:,} is committed" if status.committed is not None else ""
    sys.stderr.write(f"\r\x1b[Kstep {status.step:,}{saved}\r")
    sys.stderr.flush()
