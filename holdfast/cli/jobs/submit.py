"""`holdfast submit` and `update`: from a job file and a folder of code to a job that runs."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from holdfast.cli import absence, output
from holdfast.cli.jobs.listing import document
from holdfast.cli.options import ClusterOption, JsonOption, client_of
from holdfast.client import texts
from holdfast.wire.errors import Usage

if TYPE_CHECKING:
    from holdfast.client import Job, JobStatus
    from holdfast.client.submitting import Submission
    from holdfast.control.decide.spec import JobSpec

EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast submit job.yaml[/]

  [cyan]holdfast submit job.yaml --name trial-2 --set lr=0.1 --set warmup=100[/]

  [cyan]holdfast submit job.yaml --bundle trainer@3 --wait[/]

  [cyan]holdfast submit --schema > job.schema.json[/]   for editors; docs/job-files.md has all keys


[bold]A job file[/]

  name: counter

  command: python counter.py

  bundle: .            the folder with the code; or NAME, NAME@3, sha256:…

  workers: {min: 1, max: 4}
"""

UPDATE_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast update web.yaml[/]          its replicas are replaced one after another

  [cyan]holdfast update web.yaml --wait[/]   and it returns when all are
"""

_SETTING = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]*)=(.*)", re.ASCII | re.DOTALL)


def _print_schema(wanted: bool) -> None:
    if wanted:
        from holdfast.control.jobfile.schema import json_schema

        output.show_json(json_schema())
        raise typer.Exit


SchemaOption = Annotated[
    bool,
    typer.Option(
        "--schema",
        help="Print the JSON Schema of job files, for editors.",
        callback=_print_schema,
        is_eager=True,
    ),
]


def submit(
    file: Annotated[Path, typer.Argument(metavar="JOB.YAML", help="The job file; - is stdin.")],
    name: Annotated[str | None, typer.Option(help="Another name than the file's.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting; may be repeated."),
    ] = None,
    bundle: Annotated[
        str | None, typer.Option(help="Another bundle than the file's: DIR, NAME or NAME@3.")
    ] = None,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait", help="Follow it, and end with 0 if it does; if it serves, until it is ready."
        ),
    ] = False,
    schema: SchemaOption = False,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Submit a job: its code is pushed and pinned, and it starts when there is room."""
    from holdfast.client import submitting

    _ = schema  # it is printed already
    changed = pairs(settings or [], "holdfast submit job.yaml --set lr=0.1")
    changes = submitting.Changes(name=name, settings=changed, bundle=bundle)
    draft = submitting.draft_of(_source(file), None, changes)
    with client_of(cluster) as client:
        job = client.submit_draft(draft)
        assert job.submission is not None, "it was just submitted"
        spec = job.submission.spec
        if as_json and not wait:
            output.show_json({"name": job.name, "bundle": spec.bundle})
            return
        if not as_json:
            _say(job.submission)
        if wait and spec.serves:
            job.wait_ready(progress=absence.ProgressLines())
        elif wait:
            raise typer.Exit(until_end(job, as_json=as_json))
    output.note(f"next: holdfast jobs   holdfast logs {job.name} -f   holdfast why {job.name}")


def update(
    file: Annotated[Path, typer.Argument(metavar="JOB.YAML", help="The job file; - is stdin.")],
    name: Annotated[str | None, typer.Option(help="Another name than the file's.")] = None,
    bundle: Annotated[
        str | None, typer.Option(help="Another bundle than the file's: DIR, NAME or NAME@3.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Return when all are replaced.")] = False,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a job that serves what its file says now: each replica is replaced when a new one is
    ready. If new ones do not get ready the update stops, and the old ones go on."""
    from holdfast.client import submitting

    changes = submitting.Changes(name=name, bundle=bundle)
    draft = submitting.draft_of(_source(file), None, changes)
    with client_of(cluster) as client:
        before = client.job(draft.spec.name).facts()
        handle = client.update_draft(draft)
        job = handle.facts()
        if wait and job.is_updating:
            handle.wait_updated(progress=absence.ProgressLines())
            job = handle.facts()
    if as_json:
        output.show_json({"name": job.name, "revision": job.revision, "bundle": job.spec.bundle})
        return
    if job.spec == before.spec and job.revision == before.revision:
        words = f"{job.name} is as its file says; nothing changes"
    elif job.is_updating:
        words = f"{job.name} is being updated: its replicas are replaced one after another"
    else:
        words = f"{job.name} is updated"
    output.out().print(words, markup=False)
    output.note(f"next: holdfast jobs {job.name}   holdfast why {job.name}")


def pairs(words: list[str], example: str) -> dict[str, str]:
    """`lr=0.1` and so on, as a mapping."""
    found = {}
    for word in words:
        matched = _SETTING.fullmatch(word)
        if not matched:
            raise Usage(f"{word!r} is not NAME=VALUE", fix=example)
        found[matched[1]] = matched[2]
    return found


def _source(file: Path) -> Path | JobSpec:
    """What the client is given: the file, or the job that stdin describes."""
    from holdfast.control.jobfile import reading as jobfile

    return jobfile.parse(sys.stdin.read(), "stdin") if str(file) == "-" else file


def _say(submission: Submission) -> None:
    spec, pinned, base = submission.spec, submission.pinned, submission.folder
    console = output.out()
    console.print(f"[bold]{spec.name}[/] is submitted to queue {spec.queue}")
    if pinned is None:
        inside = [word for word in spec.command if (base / word).is_file() and word[0] != "/"]
        if inside:
            output.err().print(
                f"[yellow]it has no bundle[/], so its workers start in an empty folder, without"
                f" {inside[0]}: add the line [cyan]bundle: .[/]"
            )
        return
    if pinned.pushed is not None:
        count = texts.many(len(pinned.pushed.members), "file")
        console.print(f"  code: {count}, {texts.size(pinned.pushed.size_bytes)} ({pinned.shown})")
    else:
        console.print(f"  code: {pinned.shown}")


def until_end(job: Job, *, as_json: bool = False) -> int:
    """Follow the job until it has ended; 0 if it succeeded, 1 if not."""
    shown: tuple[str, str] | None = None
    status: JobStatus | None = None
    progress = None if as_json else absence.ProgressLines()
    try:
        for status in job.watch(steps=sys.stderr.isatty(), progress=progress):
            if not as_json and (status.phase, status.why) != shown:
                shown = (status.phase, status.why)
                _say_phase(status)
            if not status.ended and sys.stderr.isatty():
                _say_step(status)
    except KeyboardInterrupt:
        name = job.name
        output.note(
            f"\n{name} goes on. See it: holdfast jobs {name}   end it: holdfast stop {name}"
        )
        raise
    if as_json:
        output.show_json(document(job.facts(), {}))
    return 0 if status is not None and status.succeeded else 1


def _say_phase(status: JobStatus) -> None:
    line = Text(f"{texts.clock(time.time())}  ", style="dim")
    line.append_text(output.phase_text(f"{status.phase:<9}"))
    line.append(f"  {output.with_own_paths(status.why.strip())}")
    output.err().print(line)


def _say_step(status: JobStatus) -> None:
    """The step, on a terminal, in one line that is written again."""
    if status.step is None:
        return
    saved = f", {status.committed:,} is committed" if status.committed is not None else ""
    sys.stderr.write(f"\r\x1b[Kstep {status.step:,}{saved}\r")
    sys.stderr.flush()
