"""`holdfast bundle`: code with a name and versions. A job is pinned to one when it is submitted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import output
from holdfast.cli.options import ClusterOption, JsonOption, opened
from holdfast.client import texts

EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast bundle push trainer ./src[/]     a new version of `trainer`, current from now on

  [cyan]holdfast submit job.yaml --bundle trainer[/]

  [cyan]holdfast bundle rollback trainer[/]       new jobs take the version before it

  [cyan]holdfast bundle versions trainer --json[/]


Running jobs keep the version that they were submitted with. What git ignores is left out.
"""

app = typer.Typer(
    help="The user's code: named, versioned, pinned by jobs.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode="rich",
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The bundle's name.")]


@app.command(epilog=EXAMPLES)
def push(
    name: NameArgument,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The code.")] = Path(),
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Push a folder as the next version of a name."""
    from holdfast.control.store.bundles import BundlesInPlane
    from holdfast.storage import bundles
    from holdfast.storage.bundle_names import check_name, record_push

    check_name(name)
    with opened(cluster) as found:
        names = BundlesInPlane(found.session)
        before, _ = names.read(name)
        bundle = bundles.push(found.cluster.blobs(), folder.absolute())
        version = record_push(names, name, bundle.digest, bundle.size_bytes, time.time())
    fresh = before is None or before.current != version.number
    if as_json:
        output.show_json(
            {
                "name": name,
                "version": version.number,
                "digest": version.digest,
                "size_bytes": version.size_bytes,
                "files": len(bundle.members),
                "new": fresh,
            }
        )
        return
    what = "is" if fresh else "is still"
    count = texts.many(len(bundle.members), "file")
    output.out().print(
        f"{name}@{version.number} {what} current: {count}, {texts.size(bundle.size_bytes)}",
        markup=False,
    )
    output.note(f"next: holdfast submit job.yaml --bundle {name}")


@app.command("list", epilog=EXAMPLES)
def list_(cluster: ClusterOption = None, as_json: JsonOption = False) -> None:
    """List names and their current versions."""
    from holdfast.control.store.bundles import BundlesInPlane
    from holdfast.storage.bundle_names import resolved

    with opened(cluster) as found:
        names = BundlesInPlane(found.session).all()
    rows = [
        {
            "name": name,
            "current": held.current,
            "newest": held.versions[-1].number,
            "digest": resolved(held).digest,
            "size_bytes": resolved(held).size_bytes,
            "pushed_s": resolved(held).pushed_s,
        }
        for name, held in names.items()
    ]
    if as_json:
        output.show_json({"bundles": rows})
        return
    if not rows:
        output.note("no bundles. Push one: holdfast bundle push NAME DIR")
        return
    output.show_table(
        ["bundle", "current", "newest", "size", "pushed", "digest"],
        [
            (
                row["name"],
                row["current"],
                row["newest"],
                texts.size(int(str(row["size_bytes"]))),
                f"{texts.ago(float(str(row['pushed_s'])))} ago",
                str(row["digest"])[:19],
            )
            for row in rows
        ],
        right=("current", "newest", "size"),
    )


@app.command(epilog=EXAMPLES)
def versions(
    name: NameArgument, cluster: ClusterOption = None, as_json: JsonOption = False
) -> None:
    """List the versions of a name, and the jobs that are pinned to each."""
    from holdfast.control.store.bundles import BundlesInPlane

    with opened(cluster) as found:
        held = BundlesInPlane(found.session).get(name)
        pinned: dict[str, list[str]] = {}
        for job in found.plane.jobs().values():
            if not job.status.phase.final:
                pinned.setdefault(job.spec.bundle, []).append(job.name)
    rows = [
        {
            "version": each.number,
            "current": each.number == held.current,
            "digest": each.digest,
            "size_bytes": each.size_bytes,
            "pushed_s": each.pushed_s,
            "jobs": pinned.get(each.digest, []),
        }
        for each in reversed(held.versions)
    ]
    if as_json:
        output.show_json({"name": name, "versions": rows})
        return
    output.show_table(
        ["version", "", "size", "pushed", "digest", "jobs"],
        [
            (
                each.number,
                "current" if each.number == held.current else "",
                texts.size(each.size_bytes),
                f"{texts.ago(each.pushed_s)} ago",
                each.digest[:19],
                ", ".join(pinned.get(each.digest, ())),
            )
            for each in reversed(held.versions)
        ],
        right=("version", "size"),
    )


@app.command(epilog=EXAMPLES)
def rollback(
    name: NameArgument,
    version: Annotated[
        int | None, typer.Argument(metavar="[VERSION]", help="The one before it by default.")
    ] = None,
    cluster: ClusterOption = None,
) -> None:
    """Make an older version current, for jobs to come."""
    from holdfast.control.store.bundles import BundlesInPlane

    with opened(cluster) as found:
        after = BundlesInPlane(found.session).roll_back(name, version)
    output.out().print(f"{name}@{after.current} is current", markup=False)
    output.note("running jobs keep the version that they were submitted with")
