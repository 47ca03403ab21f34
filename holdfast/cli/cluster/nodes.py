"""`holdfast nodes`, `drain`, `undrain`: the machines and what they give away."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from holdfast.cli import absence, completion, output
from holdfast.cli.options import ClusterOption, JsonOption, Opened, missing, opened
from holdfast.client import texts

if TYPE_CHECKING:
    from holdfast.coordination import MemberInfo
    from holdfast.wire.resources import Resources

NODES_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast nodes[/]

  [cyan]holdfast nodes --json | jq '.nodes[].name'[/]
"""
DRAIN_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast drain gpu-7[/]            its workers leave at a step boundary; nothing new starts

  [cyan]holdfast drain gpu-7 --wait[/]     return when it is empty

  [cyan]holdfast undrain gpu-7[/]          it may have workers again
"""
_LOOK_S = 0.5

NodeArgument = Annotated[
    str, typer.Argument(metavar="NODE", help="The machine's name.", autocompletion=completion.nodes)
]


def nodes(cluster: ClusterOption = None, as_json: JsonOption = False) -> None:
    """List the machines: what each has, what is in use, which jobs it runs."""
    with opened(cluster) as found:
        rows, trouble = rows_of(found)
    if as_json:
        output.show_json({"nodes": rows})
        return
    if not rows:
        output.note("no machine is here. Start an agent: holdfast up   or: holdfast join")
        return
    shown: list[tuple[object, ...]] = [
        (
            row["name"],
            Text(row["state"], style="" if row["state"] == "ready" else "yellow"),
            _part(row, "cpu"),
            _size(row, "memory_bytes"),
            _part(row, "gpu"),
            _size(row, "disk_bytes"),
            row["workers"],
            row["region"] or "-",
            ", ".join(row["jobs"]) or "-",
            texts.ago(row["since_s"]) if row["since_s"] else "-",
        )
        for row in rows
    ]
    columns = ["node", "state", "cpu", "memory", "gpu", "disk", "workers", "region", "jobs"]
    columns.append("since")
    if not any(row["region"] for row in rows):
        at = columns.index("region")
        shown = [(*cells[:at], *cells[at + 1 :]) for cells in shown]
        columns.remove("region")
    right = ("cpu", "memory", "gpu", "disk", "workers")
    output.show_table(columns, shown, right=right, drop=("disk",))
    if trouble:
        output.note(f"no coordinator says which are connected: {trouble}")


def drain(
    name: NodeArgument,
    wait: Annotated[bool, typer.Option("--wait", help="Return when it is empty.")] = False,
    cluster: ClusterOption = None,
) -> None:
    """Empty a machine: nothing new starts there, and its workers leave at a step boundary."""
    with opened(cluster) as found:
        _check_known(found, name)
        found.plane.drain_node(name)
        held = _held(found, name)
        waiting = absence.WaitReporter(found, absence.COORDINATOR, progress=absence.ProgressLines())
        while wait and held:
            waiting.report(f"{', '.join(sorted(held))} to leave {name}")
            time.sleep(_LOOK_S)
            held = _held(found, name)
    if wait or not held:
        output.out().print(f"{name} is drained: it has no workers", markup=False)
    else:
        jobs = ", ".join(sorted(held))
        output.out().print(f"{name} drains: {sum(held.values())} of {jobs} leave", markup=False)
    output.note(f"next: holdfast nodes   and when it is back: holdfast undrain {name}")


def undrain(name: NodeArgument, cluster: ClusterOption = None) -> None:
    """Let a drained machine have workers again."""
    with opened(cluster) as found:
        if name not in found.plane.draining_nodes():
            _check_known(found, name)
        found.plane.undrain_node(name)
    output.out().print(f"{name} may have workers again", markup=False)


def rows_of(found: Opened) -> tuple[list[dict[str, Any]], str]:
    """Every machine that is here, is drained, or still holds workers; and what is not known."""
    members = found.members()
    draining = found.plane.draining_nodes()
    used: dict[str, Resources] = {}
    jobs: dict[str, set[str]] = {}
    workers: dict[str, int] = {}
    from holdfast.wire.resources import Resources as ResourceAmounts

    for job in found.plane.jobs().values():
        for placement in job.placements:
            node = placement.node
            used[node] = used.get(node, ResourceAmounts()) + job.spec.resources
            jobs.setdefault(node, set()).add(job.name)
            workers[node] = workers.get(node, 0) + 1
    seen, trouble = found.seen()
    connected = {each.node for each in seen if each.connected}
    rows = []
    for name in sorted({*members, *draining, *workers}):
        member = members.get(name)
        in_use = used.get(name, ResourceAmounts())
        rows.append(
            {
                "name": name,
                "state": _state(name, members, draining, connected, bool(trouble)),
                "capacity": _data(member).get("capacity"),
                "used": asdict(in_use),
                "workers": workers.get(name, 0),
                "jobs": sorted(jobs.get(name, ())),
                "since_s": None if member is None else member.since_ms / 1000,
                "address": _data(member).get("address"),
                "region": _data(member).get("region", ""),
            }
        )
    return rows, trouble


def _state(
    name: str,
    members: dict[str, MemberInfo],
    draining: frozenset[str],
    connected: set[str],
    unknown: bool,
) -> str:
    if name not in members:
        return "away, draining" if name in draining else "away"
    if name in draining:
        return "draining"
    return "ready" if unknown or name in connected else "not connected"


def _data(member: MemberInfo | None) -> dict[str, Any]:
    return member.data if member is not None and isinstance(member.data, dict) else {}


def _part(row: dict[str, Any], kind: str) -> str:
    capacity = row["capacity"] or {}
    return f"{row['used'][kind]:g}/{capacity[kind]:g}" if kind in capacity else "-"


def _size(row: dict[str, Any], kind: str) -> str:
    capacity = row["capacity"] or {}
    if kind not in capacity:
        return "-"
    return f"{texts.size(row['used'][kind])}/{texts.size(capacity[kind])}"


def _held(found: Opened, node: str) -> dict[str, int]:
    """How many workers each job has on a machine."""
    held: dict[str, int] = {}
    for job in found.plane.jobs().values():
        for placement in job.placements:
            if placement.node == node:
                held[job.name] = held.get(job.name, 0) + 1
    return held


def _check_known(found: Opened, name: str) -> None:
    """`Missing`, with the nearest name, unless it is or was a machine here."""
    known = {*found.members(), *found.plane.draining_nodes()}
    known |= {each.node for job in found.plane.jobs().values() for each in job.placements}
    if name not in known:
        raise missing("machine", name, known, "holdfast nodes")
