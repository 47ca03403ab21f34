"""`holdfast status`: what of a cluster runs on this machine, what should and does not, and which
machines are away."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from holdfast.cli import absence, output
from holdfast.cli.options import ClusterOption, JsonOption
from holdfast.client import texts
from holdfast.wire.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.cluster import Cluster, Process
    from holdfast.launch.health import MissingProcess

_COLUMNS: Final = ("state", "kind", "name", "process", "")
_STYLES: Final = {"starting": "yellow", "waiting": "yellow", "gave up": "bold red", "dead": "red"}
# Of a process that lives, and does nothing.
_STOPPED: Final = "stopped"
_STOPPED_MEANS: Final = "does nothing until: kill -CONT"
# A plane that answers does so at once; who only wants to look does not wait for another one.
_PLANE_S: Final = 3.0
# What was started again is news for so long.
_NEWS_S: Final = 600.0


def status(cluster: ClusterOption = None, as_json: JsonOption = False) -> None:
    """Which processes of the cluster run on this machine, what is missing since when, and which
    machines are away."""
    from holdfast.launch.cluster import find
    from holdfast.launch.health import missing
    from holdfast.launch.local import processes

    found = find(cluster)
    there, gone = processes(found), missing(found)
    away, trouble = _away(found) if there else ({}, "")
    if as_json:
        output.show_json(
            {
                "cluster": described(found),
                "processes": listed(there),
                "missing": [asdict(one) for one in gone],
                "away": away,
                "trouble": [*absence.sentences(found, gone), *_store_away(there)],
            }
        )
        return
    show(found, there, (), gone)
    for line in [*absence.sentences(found, gone), *_nodes_away(away), *_store_away(there)]:
        output.say(output.out(), line, style="yellow")
    for line in [*_tried_again(there), *_started_again(there)]:
        output.note(line)
    if trouble:
        output.note(f"which machines are away is not known: {trouble}")
    if not there and not gone:
        output.out().print("nothing of it runs here: holdfast up")


def show(
    cluster: Cluster,
    found: Sequence[Process],
    started: Collection[str],
    gone: Sequence[MissingProcess] = (),
) -> None:
    """The processes as a table: those that live, then those that should."""
    console = output.out()
    console.print(f"cluster [bold]{cluster.name}[/] in {cluster.folder}")
    rows: list[tuple[object, ...]] = []
    for one in found:
        state = "started" if f"{one.kind} {one.name}" in started else "running"
        if one.stopped:
            rows.append((Text(_STOPPED, "red"), one.kind, one.name, one.pid, _STOPPED_MEANS))
            continue
        rows.append((state, one.kind, one.name, one.pid, process_text(one)))
    for lost in gone:
        state_of = Text(lost.state, style=_STYLES[lost.state])
        rows.append((state_of, lost.kind, lost.name, "-", absence.since(lost.since_s).strip()))
    if rows:
        output.show_table(_COLUMNS, rows, right=("process",), wraps=True)
    console.print(f"store {cluster.store}", style="dim")
    console.print(f"logs  {cluster.logs_folder}", style="dim")


def described(cluster: Cluster) -> dict[str, str]:
    return {key: str(value) for key, value in asdict(cluster).items()}


def listed(found: Sequence[Process]) -> list[dict[str, Any]]:
    return [{**asdict(one), "alive": one.alive} for one in found]


def process_text(process: Process) -> str:
    """What a process says of itself, in a few words."""
    facts = process.facts
    if process.kind == "server":
        return str(facts.get("address", ""))
    if process.kind == "coordinator":
        leads = f"leads (term {facts['term']})" if facts.get("term") else "stands by"
        return f"{facts.get('address', 'starting')}  {leads}" if facts else "starting"
    if process.kind == "controller":
        return f"leads (term {facts['term']})" if facts.get("term") else "stands by"
    if process.kind in ("gateway", "envoy", "topics"):
        return str(facts.get("address", ""))
    if process.kind == "supervisor":
        count = len(facts.get("kept", ()))
        return "keeps 1 process" if count == 1 else f"keeps {count} processes"
    if facts.get("term"):
        capacity = facts.get("capacity", {})
        size = f"{capacity.get('cpu', 0):g} cpu, {capacity.get('memory_bytes', 0) / 2**30:.1f} GiB"
        return f"{size}, {capacity.get('gpu', 0)} gpu"
    return str(facts.get("trouble") or "not connected to a leader").splitlines()[0]


def _store_away(found: Sequence[Process]) -> list[str]:
    """What the leader says of the blob store, if that is away."""
    told = (one.facts.get("store_trouble") for one in found if one.kind == "coordinator")
    return sorted({f"{each}: nothing is saved, and no code is fetched" for each in told if each})


def _tried_again(found: Sequence[Process]) -> list[str]:
    """What fails in a process and is tried again, and what has failed lately."""
    return [
        f"{one.kind} {one.name}: {trouble['what']} has failed"
        f" {texts.many(trouble['count'], 'time')}, last at {texts.clock(trouble['at_s'])}"
        f" ({texts.one_line(trouble['why'])}); "
        + ("it is tried again" if trouble["in_a_row"] else "it is well again")
        for one in found
        for trouble in one.facts.get("retried", ())
        if trouble["in_a_row"] or trouble["at_s"] > time.time() - _NEWS_S
    ]


def _started_again(found: Sequence[Process]) -> list[str]:
    """What the supervisor has started again, as long as it has not proved steady."""
    kept = [one.facts.get("kept", {}) for one in found if one.kind == "supervisor"]
    return [
        f"{key} {shown['why']}; started again at {texts.clock(shown['since_s'])}"
        for each in kept
        for key, shown in sorted(each.items())
        if shown["deaths"]
        and shown["state"] == "running"
        and shown["since_s"] > time.time() - _NEWS_S
    ]


# --- machines that are away -----------------------------------------------------------------------


def _away(cluster: Cluster) -> tuple[dict[str, int], str]:
    """Nodes that have joined or hold workers, and are not here: how many workers each holds. And
    why that is not known, if it is not."""
    from holdfast.control.store.joins import joined_nodes
    from holdfast.control.store.plane import ControlPlane
    from holdfast.coordination import Membership
    from holdfast.coordination import launch as servers
    from holdfast.wire.names import NODES_PATH

    if cluster.embedded is not None and servers.find(cluster.embedded.folder) is None:
        return {}, "the coordination server does not run"  # looking must not start it
    try:
        with cluster.session(timeout_s=_PLANE_S, operation_timeout_s=_PLANE_S) as session:
            here = Membership(session, NODES_PATH).members()
            held = dict.fromkeys(joined_nodes(session), 0)
            for job in ControlPlane(session).jobs().values():
                for placement in job.placements:
                    held[placement.node] = held.get(placement.node, 0) + 1
    except HoldfastError as error:
        return {}, error.what
    return {node: count for node, count in sorted(held.items()) if node not in here}, ""


def _nodes_away(away: dict[str, int]) -> list[str]:
    return [
        f"node {node} is away"
        + (f", with {texts.many(count, 'worker')} that are waited for" if count else "")
        + ": its agent does not answer; there: holdfast up"
        for node, count in away.items()
    ]
