"""`holdfast checkpoints`: what is committed of a job, whether it is whole, and its files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from holdfast.cli import completion, output
from holdfast.cli.options import ClusterOption, JsonOption, Opened, opened
from holdfast.client import texts
from holdfast.wire.errors import HoldfastError, Missing, Occupied, Usage

if TYPE_CHECKING:
    from holdfast.control.decide.facts import Checkpoint, JobRecord
    from holdfast.storage import Blobs
    from holdfast.storage.manifests import Manifest

EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast checkpoints counter[/]

  [cyan]holdfast checkpoints counter --verify[/]            read every byte; ends with 1 if damaged

  [cyan]holdfast checkpoints export counter last ./out[/]   safetensors files, and manifest.json
"""

# Progress of what takes longer than this is shown.
_PROGRESS_S = 1.0


def checkpoints(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB | export JOB STEP DIR",
            help="See the examples.",
            autocompletion=completion.jobs,
        ),
    ],
    verify: Annotated[bool, typer.Option("--verify", help="Read every part of each.")] = False,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the committed checkpoints of a job, verify them, or export one as safetensors files."""
    if words[0] == "export" and len(words) == 4:
        _, name, step, target = words
        _export(name, step, Path(target), cluster, as_json)
        return
    if len(words) != 1:
        raise Usage(
            "this is neither a job nor an export",
            fix="holdfast checkpoints JOB, or: holdfast checkpoints export JOB STEP DIR",
        )
    with opened(cluster, reads=True) as found:
        job = found.job(words[0])
        blobs = found.cluster.blobs()
        aside = {each.checkpoint.step: each.reason for each in job.unreadable}
        rows = [
            {**_row(blobs, each, verify), "put_aside": aside.get(each.step, "")}
            for each in reversed(_all(job))
        ]
    if as_json:
        output.show_json({"job": job.name, "checkpoints": rows})
    else:
        _show(job, rows)
    if any(row["trouble"] for row in rows):
        raise typer.Exit(1)


def _all(job: JobRecord) -> tuple[Checkpoint, ...]:
    """Also those that could not be read when the job wanted to start from them: they may be by
    now."""
    return (*job.checkpoints, *(each.checkpoint for each in job.unreadable))


def _row(blobs: Blobs, checkpoint: Checkpoint, verify: bool) -> dict[str, Any]:
    from holdfast.storage import manifests

    row: dict[str, Any] = {
        "step": checkpoint.step,
        "committed_s": checkpoint.committed_s,
        "term": checkpoint.term,
        "manifest": checkpoint.manifest,
        "parts": None,
        "size_bytes": None,
        "verified": None,
        "trouble": "",
    }
    try:
        manifest = manifests.read_manifest(blobs, checkpoint.manifest)
        row["parts"] = sum(1 for _ in manifest.parts())
        row["size_bytes"] = manifest.size_bytes
        if verify:
            manifests.verify(blobs, manifest)
            row["verified"] = True
    except HoldfastError as error:
        row["verified"] = False
        row["trouble"] = str(error)
    return row


def _show(job: JobRecord, rows: list[dict[str, Any]]) -> None:
    if not rows:
        output.note(f"{job.name} has no committed checkpoint. Ask for one: holdfast checkpoint JOB")
        return
    shown = [
        (
            f"{row['step']:,}",
            f"{texts.ago(row['committed_s'])} ago",
            "-" if row["size_bytes"] is None else texts.size(row["size_bytes"]),
            "-" if row["parts"] is None else row["parts"],
            row["term"],
            _state(row),
        )
        for row in rows
    ]
    output.show_table(
        ["step", "committed", "size", "parts", "term", "state"],
        shown,
        right=("step", "size", "parts", "term"),
    )


def _state(row: dict[str, Any]) -> Text:
    if row["trouble"]:
        return Text(f"damaged: {texts.one_line(row['trouble'])}", style="bold red")
    if row["put_aside"]:
        return Text(f"put aside: {texts.one_line(row['put_aside'])}", style="yellow")
    return Text("whole", style="green") if row["verified"] else Text("committed")


def _export(name: str, step: str, target: Path, cluster: Path | None, as_json: bool) -> None:
    from holdfast.storage import manifests

    with opened(cluster) as found:
        checkpoint = _chosen(found, name, step)
        blobs = found.cluster.blobs()
        manifest = manifests.read_manifest(blobs, checkpoint.manifest)
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise Occupied(
                f"{target} is there already, and not empty", fix="name a new or an empty folder"
            )
        target.mkdir(parents=True, exist_ok=True)
        files = _write(blobs, manifest, target)
    if as_json:
        document = {"job": name, "step": manifest.step, "folder": str(target), "files": files}
        output.show_json(document)
        return
    count = texts.many(len(files), "file")
    output.out().print(
        f"step {manifest.step:,} of {name}: {count}, {texts.size(manifest.size_bytes)} in {target}",
        markup=False,
    )
    output.note(f'read it: safetensors.numpy.load_file("{target / files[0]}")' if files else "")


def _chosen(found: Opened, name: str, step: str) -> Checkpoint:
    job = found.job(name)
    if not _all(job):
        raise Missing(f"{name} has no committed checkpoint", fix=f"holdfast checkpoint {name}")
    if step == "last":
        return (job.checkpoints or _all(job))[-1]
    for each in _all(job):
        if str(each.step) == step.replace(",", ""):
            return each
    known = ", ".join(str(each.step) for each in _all(job))
    raise Missing(
        f"step {step} of {name} is not a committed checkpoint",
        why=f"there are: {known}",
        fix=f"holdfast checkpoints export {name} last DIR",
    )


def _write(blobs: Blobs, manifest: Manifest, target: Path) -> list[str]:
    """Each part as a file of its own, verified on its way, and the manifest beside them."""
    from holdfast.storage import manifests

    files: list[str] = []
    begun_s = time.monotonic()
    parts = list(manifest.parts())
    for number, (_, part) in enumerate(parts, 1):
        file = f"part-{number:05}-of-{len(parts):05}.safetensors"
        draft = target / f".{file}"
        with draft.open("wb") as out:
            for piece in blobs.stream(part.key, expect_digest=part.digest):
                out.write(piece)
        draft.rename(target / file)
        files.append(file)
        if time.monotonic() > begun_s + _PROGRESS_S:
            begun_s = time.monotonic()
            output.note(f"{number} of {len(parts)} parts")
    (target / "manifest.json").write_bytes(manifests.to_bytes(manifest))
    return files
