"""`holdfast logs JOB`: what its workers wrote, from every machine, as one stream.

Each line is whole: half of one waits for its other half. A machine that is away is named, and the
rest is shown; with `--follow` its lines come when it is back.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.text import Text

from holdfast.cli import output
from holdfast.cli.options import ClusterOption, JobArgument, client_of
from holdfast.client import texts
from holdfast.wire.errors import Usage

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.client import JobRecord as JobHandle
    from holdfast.client.logs import LogLine
    from holdfast.control.decide.facts import JobRecord

EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast logs counter[/]                    the last 100 lines of each worker

  [cyan]holdfast logs counter -f[/]                 and what comes, also of workers that come

  [cyan]holdfast logs counter --worker 3 --stderr[/]

  [cyan]holdfast logs counter -n all > counter.log[/]

  [cyan]holdfast logs digits -f[/]                  the replicas of a service
"""
_STYLES: Final = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green")


def logs(
    name: JobArgument,
    worker: Annotated[int | None, typer.Option("--worker", "-w", help="Only this one.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it is written.")] = False,
    lines: Annotated[str, typer.Option("-n", help="The last lines of each worker, or `all`.")] = "",
    stdout: Annotated[bool, typer.Option("--stdout", help="Only what went to stdout.")] = False,
    stderr: Annotated[bool, typer.Option("--stderr", help="Only what went to stderr.")] = False,
    cluster: ClusterOption = None,
) -> None:
    """Show what a job's workers wrote, on any machine; also of those that have ended."""

    count = _count(lines or "100")
    both = stdout == stderr
    with client_of(cluster, reads=True) as client:
        follow = follow and not client.down
        handle = _job(client, name)
        job = handle.facts()
        # One worker of one: nobody needs to be told which.
        alone = worker is not None or job.spec.workers_max == 1
        printer = LinePrinter(prefix=not alone, live=follow)
        written = handle.logs(
            follow=follow,
            worker=worker,
            lines=count,
            stdout=stdout or both,
            stderr=stderr or both,
        )
        try:
            printer.show(written)
        except KeyboardInterrupt:
            output.note(f"\n{job.name} goes on" if not job.status.phase.final else "")
            raise
    if not printer.lines:
        output.note(_nothing(job, worker))


def _job(client: Client, name: str) -> JobHandle:
    """The job; of a service, the one of its replicas."""
    from holdfast.client.job_actions import is_service
    from holdfast.serve.records import job_name

    return client.job(job_name(name) if is_service(client.found, name) else name)


def _count(lines: str) -> int | None:
    if lines == "all":
        return None
    if not (lines.isascii() and lines.isdecimal()):
        raise Usage(f"{lines!r} is not a number of lines", fix="-n 100, or -n all")
    return int(lines)


def _nothing(job: JobRecord, worker: int | None) -> str:
    if worker is not None and worker >= job.next_worker:
        return f"{job.name} never had a worker {worker}"
    if job.next_worker == 1:
        reason = texts.one_line(job.status.reason)
        return f"{job.name} had no workers yet: it is {job.status.phase.value}: {reason}"
    return "nothing is there: none was written, it is not kept any more, or its machine is away"


@dataclass
class LinePrinter:
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
