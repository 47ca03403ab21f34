"""`holdfast submit` and `update`: from a job file and a folder of code to a job that runs."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import listing, output, times
from holdfast.cli.opening import ClusterOption, JsonOption, Opened, opened
from holdfast.wire.errors import Missing, Refused, Usage

if TYPE_CHECKING:
    from holdfast.control.bundles import Pinned
    from holdfast.control.facts import Job
    from holdfast.control.spec import JobSpec

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

# Many replicas, one after another, each with its own start.
_UPDATE_S = 3_600.0
_SETTING = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]*)=(.*)", re.ASCII | re.DOTALL)


def _print_schema(wanted: bool) -> None:
    if wanted:
        from holdfast.control.jobfile_schema import json_schema

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
    from holdfast.cli import following

    _ = schema  # it is printed already
    spec = _spec(file, name, settings or [])
    base = Path.cwd() if bundle is not None or str(file) == "-" else file.absolute().parent
    with opened(cluster) as found:
        spec, pinned = _pinned(spec, bundle, base, found)
        job = found.plane.submit(spec)
        if as_json and not wait:
            output.show_json({"name": job.name, "bundle": job.spec.bundle})
            return
        if not as_json:
            _say(job.spec, pinned, base)
        if wait and job.spec.serves:
            following.until(found, job.name, _serving, "its replicas are ready", _UPDATE_S)
        elif wait:
            raise typer.Exit(following.until_end(found, job.name, as_json=as_json))
    listing.note(f"next: holdfast jobs   holdfast logs {job.name} -f   holdfast why {job.name}")


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
    from holdfast.cli import acts, following

    spec = _spec(file, name, [])
    base = Path.cwd() if bundle is not None or str(file) == "-" else file.absolute().parent
    with opened(cluster) as found:
        acts.check_no_service(found, spec.name)
        before = found.job(spec.name)
        spec, _ = _pinned(spec, bundle, base, found)
        job = found.plane.update(spec)
        if wait and job.is_updating:
            job = following.until(found, job.name, _updated, "the update", _UPDATE_S)
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
    listing.note(f"next: holdfast jobs {job.name}   holdfast why {job.name}")


def _serving(job: Job) -> bool:
    """Whether all of its replicas are ready."""
    if job.status.phase.final:
        raise Refused(f"{job.name} has {job.status.phase.value}", fix=f"holdfast why {job.name}")
    return job.status.phase.value == "running"


def _updated(job: Job) -> bool:
    """Whether every replica is of the new revision; `Refused` if it was stopped."""
    if job.halted is not None and job.is_halted:
        raise Refused(
            f"the update of {job.name} was stopped; the replicas before it go on",
            why=job.halted.reason,
            fix=f"holdfast logs {job.name} --stderr; then change the file, and update again",
        )
    return not job.is_updating and not any(placement.draining for placement in job.placements)


def pairs(words: list[str], example: str) -> dict[str, str]:
    """`lr=0.1` and so on, as a mapping."""
    found = {}
    for word in words:
        matched = _SETTING.fullmatch(word)
        if not matched:
            raise Usage(f"{word!r} is not NAME=VALUE", fix=example)
        found[matched[1]] = matched[2]
    return found


def _spec(file: Path, name: str | None, settings: list[str]) -> JobSpec:
    from holdfast.control import filing, jobfile

    if str(file) == "-":
        text, source = sys.stdin.read(), "stdin"
    else:
        if not file.is_file():
            raise Missing(
                f"there is no file {file}",
                fix="holdfast submit --help shows what a job file looks like",
            )
        text, source = file.read_text(errors="replace"), str(file)
    spec = jobfile.parse(text, source)
    changed = pairs(settings, "holdfast submit job.yaml --set lr=0.1")
    spec = replace(spec, settings={**spec.settings, **changed})
    return spec if name is None else replace(spec, name=filing.check_name("job", name))


def _pinned(
    spec: JobSpec, bundle: str | None, base: Path, found: Opened
) -> tuple[JobSpec, Pinned | None]:
    from holdfast.control.bundles import BundlesInPlane, pin
    from holdfast.control.jobfile_environment import requirement_files

    reference = spec.bundle if bundle is None else bundle
    files = requirement_files(spec)
    if not reference and files:
        raise _not_bundled(files[0], "it has no bundle", "add the line: bundle: .")
    if not reference:
        return spec, None
    pinned = pin(reference, base, BundlesInPlane(found.session), found.cluster.blobs())
    members = None if pinned.pushed is None else {str(one.path) for one in pinned.pushed.members}
    for name in files:
        if members is not None and str(PurePosixPath(name)) not in members:
            where = base / Path(reference).expanduser()
            raise _not_bundled(
                name, f"it is not among the files of {where}", f"put it into {where}"
            )
    return replace(spec, bundle=pinned.digest), pinned


def _not_bundled(name: str, why: str, fix: str) -> Usage:
    return Usage(
        f"{name}, which `requirements` names, does not travel with the job", why=why, fix=fix
    )


def _say(spec: JobSpec, pinned: Pinned | None, base: Path) -> None:
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
        count = times.many(len(pinned.pushed.members), "file")
        console.print(f"  code: {count}, {times.size(pinned.pushed.size_bytes)} ({pinned.shown})")
    else:
        console.print(f"  code: {pinned.shown}")
