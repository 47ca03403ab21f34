"""`holdfast up`, `down`, `status`, `token`, `join`: the processes of a cluster on this machine.
`standby` stands beside, in a file of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import output
from holdfast.cli import standby as standing
from holdfast.cli.opening import ClusterOption, JsonOption

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.cluster import Cluster, Process

CpuOption = Annotated[
    float | None,
    typer.Option(help="Cores each agent gives away; may be more than there are.", min=0.001),
]
MemoryOption = Annotated[
    str | None, typer.Option(help="Memory each agent gives away: 512MiB, 16GB …")
]
GpuOption = Annotated[
    int | None,
    typer.Option(help="GPUs each agent gives away; otherwise all that are free.", min=0),
]
GpuShareOption = Annotated[
    int | None,
    typer.Option(help="Workers that share each GPU: it counts as that many.", min=1),
]
RegionOption = Annotated[
    str | None, typer.Option(help="Where this machine is: gateways prefer replicas of their own.")
]

UP_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast up[/]                               a cluster on this machine

  [cyan]holdfast up --cpu 16[/]                      pretend to have 16 cores

  [cyan]holdfast up --coordinators 2 --agents 2[/]   a standby, and two nodes

  [cyan]holdfast up --listen 10.0.0.5[/]             others may join: holdfast token

  [cyan]holdfast up --coordination zk://h1,h2,h3/ml --store s3://bucket/ml[/]
"""
DOWN_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast down[/]           workers have ten seconds to reach a step boundary

  [cyan]holdfast down --force[/]   nobody is asked
"""
LETTING_IN_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast token --valid 10m[/]                a machine: holdfast join TOKEN

  [cyan]holdfast token --standby[/]                  a coordinator: holdfast standby TOKEN
"""
JOIN_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast token --valid 10m[/]                on a machine of the cluster, then here:

  [cyan]holdfast join TOKEN --node gpu-7[/]

  [cyan]holdfast join TOKEN --foreground[/]          until Ctrl-C, which ends its workers too
"""


def register(app: typer.Typer) -> None:
    """Put these commands under the root."""
    app.command(epilog=UP_EXAMPLES)(up)
    app.command(epilog=DOWN_EXAMPLES)(down)
    app.command()(status)
    app.command(epilog=LETTING_IN_EXAMPLES)(token)
    app.command(epilog=JOIN_EXAMPLES)(join)
    app.command(epilog=standing.EXAMPLES)(standing.standby)


def up(
    cluster: ClusterOption = None,
    name: Annotated[str | None, typer.Option(help="A new cluster's name.")] = None,
    coordination: Annotated[
        str | None, typer.Option(help="zk://…; otherwise a server of its own is embedded.")
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="s3://…, file:DIR; otherwise a folder of its own.")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(help="This machine's address, so that others may join; otherwise loopback."),
    ] = None,
    coordinators: Annotated[int, typer.Option(help="How many; one leads.", min=1, max=9)] = 1,
    agents: Annotated[int, typer.Option(help="How many nodes on this machine.", min=0, max=10)] = 1,
    cpu: CpuOption = None,
    memory: MemoryOption = None,
    gpu: GpuOption = None,
    gpu_share: GpuShareOption = None,
    region: RegionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a cluster on this machine, or what is missing of it.

    Makes the folder and the certificates if they are new, starts the coordination server, the
    coordinators and the agents, and waits until they are ready. Run it again at any time.
    """
    from holdfast.launch import local
    from holdfast.launch.cluster import default_folder

    folder = default_folder(cluster)
    given = {"name": name, "coordination": coordination, "store": store, "listen": listen}
    wanted = {key: value for key, value in given.items() if value is not None}
    found = _made(folder, wanted)
    room = local.Room(cpu, memory_bytes(memory), gpu, region=region, gpu_share=gpu_share)
    with _progress() as look:
        done = local.up(
            found,
            coordinators=coordinators,
            agents=agents,
            room=room,
            look=lambda what: look(f"waiting for {what}"),
        )
    if as_json:
        output.show_json(
            {
                "cluster": _described(found),
                "leader": done.leader._asdict(),
                "started": list(done.started),
                "processes": _listed(done.processes),
            }
        )
        return
    _show(found, done.processes, done.started)
    if room != local.Room() and not any(one.startswith("agent") for one in done.started):
        output.err().print("[yellow]agents that run keep their size;[/] holdfast down, then up")
    _next(found)


def down(
    cluster: ClusterOption = None,
    force: Annotated[bool, typer.Option("--force", help="Kill; nobody is asked.")] = False,
    as_json: JsonOption = False,
) -> None:
    """End everything of the cluster on this machine. Jobs stay, and go on with the next `up`."""
    from holdfast.launch.cluster import find
    from holdfast.launch.ending import down as end

    found = find(cluster)
    with _progress() as look:
        done = end(found, force=force, look=look)
    if as_json:
        output.show_json(
            {"stopped": [asdict(one) for one in done.stopped], "workers": done.workers}
        )
        return
    if not done.stopped and not done.workers:
        output.out().print(f"nothing of {found.folder} runs")
        return
    rows = [
        ("killed" if one.killed else "stopped", one.kind, one.name, f"process {one.pid}")
        for one in done.stopped
    ]
    output.out().print(output.table([], rows))
    if done.workers:
        workers = "1 worker was" if done.workers == 1 else f"{done.workers} workers were"
        output.out().print(f"{workers} ended; their jobs go on with holdfast up")


def status(cluster: ClusterOption = None, as_json: JsonOption = False) -> None:
    """Which processes of the cluster run on this machine, where they listen, and their logs."""
    from holdfast.launch.cluster import find
    from holdfast.launch.local import processes

    found = find(cluster)
    there = processes(found)
    if as_json:
        output.show_json({"cluster": _described(found), "processes": _listed(there)})
        return
    _show(found, there, ())
    if not there:
        output.out().print("nothing of it runs here: holdfast up")


def token(
    cluster: ClusterOption = None,
    valid: Annotated[str, typer.Option(help="How long: 10m, 2h, 1d.")] = "1h",
    node: Annotated[str | None, typer.Option(help="Good for this name only.")] = None,
    standby: Annotated[
        bool, typer.Option("--standby", help="For holdfast standby, which may lead.")
    ] = False,
) -> None:
    """Print a token with which another machine may join, for a while. It is a secret."""
    from holdfast.launch import joining
    from holdfast.launch.cluster import find
    from holdfast.wire.tokens import Kind

    found = find(cluster)
    kind = Kind.STANDBY if standby else Kind.JOIN
    text = joining.token(found, life_s=_seconds(valid), node=node, kind=kind)
    sys.stdout.write(text + "\n")
    if found.store_is_local:
        output.err().print(
            f"[yellow]the store is a folder:[/] machines that join must see {found.store} "
            "at the same path; others need holdfast up --store s3://…"
        )
    if found.listen == "127.0.0.1":
        output.err().print(
            "[yellow]this cluster is reached from this machine only;[/] a new one with "
            "holdfast up --listen ADDRESS takes others in"
        )


def join(
    token: Annotated[str, typer.Argument(help="From holdfast token; - reads it from stdin.")],
    cluster: ClusterOption = None,
    node: Annotated[str | None, typer.Option(help="This node's name; else the machine's.")] = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay here until Ctrl-C; workers end then too.")
    ] = False,
    cpu: CpuOption = None,
    memory: MemoryOption = None,
    gpu: GpuOption = None,
    gpu_share: GpuShareOption = None,
    region: RegionOption = None,
) -> None:
    """Join this machine to a cluster, with a token, and start its agent."""
    from holdfast.launch import joining, local
    from holdfast.launch.cluster import default_folder

    text = sys.stdin.read() if token == "-" else token  # noqa: S105 (a dash, not a token)
    joined = joining.join(default_folder(cluster), text.strip(), node)
    room = local.Room(cpu, memory_bytes(memory), gpu, region=region, gpu_share=gpu_share)
    if foreground:
        _serve_here(joined.cluster, joined.node, room)
        return
    with _progress() as look, joined.cluster.session() as session:
        started = local.start_agent(joined.cluster, room, node=joined.node)
        report: Callable[[str], None] = lambda what: look(f"waiting for {what}")  # noqa: E731
        leader = local.await_ready(joined.cluster, session, [started], look=report)
    output.out().print(
        f"node {joined.node} has joined cluster {joined.cluster.name}, led by {leader.name}"
    )
    output.out().print(f"  folder {joined.cluster.folder}\n  log    {started.log}")
    output.out().print("next: holdfast nodes, or holdfast down to leave", style="dim")


# --- private ------------------------------------------------------------------------------------


def _serve_here(cluster: Cluster, node: str, room: Any) -> None:
    from holdfast.agent.main import Options, serve
    from holdfast.wire import logs

    logs.set_up("info")
    options = Options(
        cluster.folder,
        node,
        room.cpu,
        room.memory_bytes,
        room.gpu,
        region=room.region or "",
        gpu_share=room.gpu_share or 1,
    )
    raise typer.Exit(serve(options))


def _made(folder: Path, wanted: dict[str, str]) -> Cluster:
    """The cluster of that folder, made if there is none. Whoever makes it first, wins."""
    from contextlib import suppress

    from holdfast.launch import local
    from holdfast.launch.cluster import opened
    from holdfast.wire.errors import Missing, Occupied

    with suppress(Occupied):
        try:
            found = opened(folder)
        except Missing:
            return local.make(folder, **wanted)  # type: ignore[arg-type]
        _check_same(found, wanted)
        return found
    return opened(folder)


def _check_same(found: Cluster, wanted: dict[str, str]) -> None:
    """A cluster's addresses do not change: its jobs and its machines rely on them."""
    from holdfast.cluster import described
    from holdfast.wire.errors import Usage

    meant = described(found.folder, **wanted)
    for key, value in wanted.items():
        have = str(getattr(found, key))
        if getattr(meant, key) != have:
            raise Usage(
                f"{found.folder} is a cluster with --{key} {have}",
                why=f"--{key} {value} was given, and that does not change once it is made",
                fix=f"leave it out, or make another cluster: holdfast up --cluster DIR --{key} …",
            )


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """A line that says what is being waited for, on a terminal; nothing elsewhere."""
    with output.err().status("looking") as shown:
        yield shown.update


def _described(cluster: Cluster) -> dict[str, str]:
    return {key: str(value) for key, value in asdict(cluster).items()}


def _listed(found: Any) -> list[dict[str, Any]]:
    return [{**asdict(one), "alive": one.alive} for one in found]


def _show(cluster: Cluster, found: Any, started: tuple[str, ...]) -> None:
    console = output.out()
    console.print(f"cluster [bold]{cluster.name}[/] in {cluster.folder}")
    rows = []
    for one in found:
        state = "started" if f"{one.kind} {one.name}" in started else "running"
        rows.append((state, one.kind, one.name, f"process {one.pid}", _said(one)))
    if rows:
        console.print(output.table([], rows))
    console.print(f"store {cluster.store}", style="dim")
    console.print(f"logs  {cluster.logs_folder}", style="dim")


def _said(process: Process) -> str:
    """What a process says of itself, in a few words."""
    facts = process.facts
    if process.kind == "server":
        return str(facts.get("address", ""))
    if process.kind == "coordinator":
        leads = f"leads (term {facts['term']})" if facts.get("term") else "stands by"
        return f"{facts.get('address', 'starting')}  {leads}" if facts else "starting"
    if process.kind == "conductor":
        return f"conducts (term {facts['term']})" if facts.get("term") else "stands by"
    if process.kind in ("gateway", "envoy"):
        return str(facts.get("address", ""))
    if facts.get("term"):
        room = facts.get("capacity", {})
        size = f"{room.get('cpu', 0):g} cpu, {room.get('memory_bytes', 0) / 2**30:.1f} GiB"
        return f"{size}, {room.get('gpu', 0)} gpu"
    return str(facts.get("trouble") or "not connected to a leader").splitlines()[0]


def _next(cluster: Cluster) -> None:
    from holdfast.launch.cluster import default_folder

    option = "" if default_folder() == cluster.folder else f" --cluster {cluster.folder}"
    console = output.out()
    console.print("\n[dim]next[/]")
    for command, what in (
        ("submit job.yaml", "a job"),
        ("nodes", "the machines"),
        ("status", "these processes"),
        ("down", "end all of it; jobs stay"),
    ):
        console.print(f"  [cyan]holdfast {command}{option}[/]  [dim]{what}[/]")


def memory_bytes(text: str | None) -> int | None:
    """`--memory 16GiB` as bytes."""
    from holdfast.control import units
    from holdfast.wire.errors import Usage

    found = None if text is None else units.bytes_of(text)
    if text is not None and found is None:
        raise Usage(f"--memory {text} is not {units.SIZE_EXAMPLE}", fix="write it as 16GiB")
    return found


def _seconds(text: str) -> float:
    from holdfast.control import units
    from holdfast.wire.errors import Usage

    found = units.seconds_of(text)
    if found is None:
        raise Usage(f"--valid {text} is not {units.DURATION_EXAMPLE}", fix="write it as 10m")
    return found
