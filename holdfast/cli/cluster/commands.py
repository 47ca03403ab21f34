"""`holdfast up`, `down`, `status`: the processes of a cluster on this machine. `token`, `join` and
`standby` are in files of their own."""

from __future__ import annotations

import getpass
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from holdfast.cli import output
from holdfast.cli.cluster import join, status
from holdfast.cli.cluster import standby as standing_by
from holdfast.cli.cluster.agent_options import (
    CpuOption,
    DiskOption,
    GpuOption,
    GpuShareOption,
    MemoryOption,
    RegionOption,
    memory_bytes,
    progress,
)
from holdfast.cli.options import ClusterOption, JsonOption

if TYPE_CHECKING:
    from holdfast.cluster import Cluster
    from holdfast.launch.local import Up

UP_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast up[/]                               a cluster on this machine

  [cyan]holdfast up --cpu 16[/]                      pretend to have 16 cores

  [cyan]holdfast up --coordinators 2 --agents 2[/]   a standby, and two nodes

  [cyan]holdfast up --listen 10.0.0.5[/]             others may join: holdfast token

  [cyan]holdfast up --coordination zk://h1,h2,h3/ml --store s3://bucket/ml[/]

  [cyan]holdfast up --topics 'kafka://h1,h2?prefix=ml.'[/]   your Kafka, not a broker of its own

  [cyan]holdfast up --systemd[/]                     a unit: it comes up when the machine does
"""
DOWN_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast down[/]           workers have ten seconds to reach a step boundary

  [cyan]holdfast down --force[/]   nobody is asked
"""


def register(app: typer.Typer) -> None:
    """Put these commands under the root."""
    app.command(epilog=UP_EXAMPLES)(up)
    app.command(epilog=DOWN_EXAMPLES)(down)
    app.command()(status.status)
    app.command(epilog=join.LETTING_IN_EXAMPLES)(join.token)
    app.command(epilog=join.JOIN_EXAMPLES)(join.join)
    app.command(epilog=standing_by.EXAMPLES)(standing_by.standby)
    app.command(epilog=MIGRATE_EXAMPLES)(migrate)


NetworkOption = Annotated[
    str | None,
    typer.Option(
        metavar="trusted",
        help="With --listen: nobody else has access to the network, so the embedded server needs "
        "no TLS.",
    ),
]
ListenOption = Annotated[
    str | None,
    typer.Option(help="This machine's address, so that others may join; otherwise loopback."),
]
TopicsOption = Annotated[
    str | None,
    typer.Option(
        help="kafka://…; otherwise a broker of its own, started when something uses topics "
        "(embedded: at once)."
    ),
]
ForegroundOption = Annotated[
    bool, typer.Option("--foreground", help="Stay here while the cluster is up.")
]
SystemdOption = Annotated[
    bool, typer.Option("--systemd", help="Print a systemd unit that does it, and do nothing.")
]


def up(
    cluster: ClusterOption = None,
    name: Annotated[str | None, typer.Option(help="A new cluster's name.")] = None,
    coordination: Annotated[
        str | None, typer.Option(help="zk://…; otherwise a server of its own is embedded.")
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="s3://…, file:DIR; otherwise a folder of its own.")
    ] = None,
    topics: TopicsOption = None,
    listen: ListenOption = None,
    network: NetworkOption = None,
    coordinators: Annotated[int, typer.Option(help="How many; one leads.", min=1, max=9)] = 1,
    agents: Annotated[int, typer.Option(help="How many nodes on this machine.", min=0, max=10)] = 1,
    cpu: CpuOption = None,
    memory: MemoryOption = None,
    gpu: GpuOption = None,
    gpu_share: GpuShareOption = None,
    disk: DiskOption = None,
    region: RegionOption = None,
    foreground: ForegroundOption = False,
    systemd: SystemdOption = False,
    as_json: JsonOption = False,
) -> None:
    """Start a cluster on this machine, or what is missing of it.

    It is the one in [cyan].holdfast[/] of this folder or above it, else of your home. If there is
    none it is made here, in this folder or at the top of its git checkout. Starts the coordination
    server, the coordinators and the agents, and waits until they are ready. A supervisor keeps them
    alive from then on, until [cyan]holdfast down[/]. Run it again at any time.
    """
    from holdfast.coordination.address import checked_network
    from holdfast.launch import local
    from holdfast.launch.cluster import default_folder, is_cluster

    folder = default_folder(cluster)
    if systemd:
        sys.stdout.write(systemd_unit(folder, sys.argv[1:]))
        return
    given = {"name": name, "coordination": coordination, "store": store, "listen": listen}
    given["network"] = None if network is None else checked_network(network)
    wanted = {key: value for key, value in given.items() if value is not None}
    new = not is_cluster(folder)
    found = _made(folder, wanted)
    sizes = (memory_bytes(memory), memory_bytes(disk, "--disk"))
    size = local.AgentSize(cpu, sizes[0], gpu, None, region, gpu_share, sizes[1])
    with progress() as look:
        done = local.up(
            found,
            coordinators=coordinators,
            agents=agents,
            size=size,
            topics=topics or "",
            look=lambda what: look(f"waiting for {what}"),
        )
    _report(found, done, new=new, as_json=as_json)
    _warn_of_size(done.started, given=size != local.AgentSize())
    if foreground:
        stay(found.folder)


def _warn_of_size(started: Sequence[str], *, given: bool) -> None:
    if given and not any(one.startswith("agent") for one in started):
        output.err().print("[yellow]agents that run keep their size;[/] holdfast down, then up")


def down(
    cluster: ClusterOption = None,
    force: Annotated[bool, typer.Option("--force", help="Kill; nobody is asked.")] = False,
    as_json: JsonOption = False,
) -> None:
    """End everything of the cluster on this machine. Jobs stay, and go on with the next `up`."""
    from holdfast.launch.cluster import find
    from holdfast.launch.ending import down as end

    found = find(cluster, of_older=True)
    with progress() as look:
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


# --- private ------------------------------------------------------------------------------------


def _report(found: Cluster, done: Up, *, new: bool, as_json: bool) -> None:
    """What runs now, and what of it was started."""
    if as_json:
        output.show_json(
            {
                "cluster": status.described(found),
                "leader": done.leader._asdict(),
                "started": list(done.started),
                "closed": done.closed,
                "tightened": done.tightened,
                "processes": status.listed(done.processes),
            }
        )
        return
    status.show(found, done.processes, done.started)
    _closed(done.closed, done.tightened)
    _next(found, new=new)


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

    meant = described(found.folder, **{key: wanted[key] for key in wanted if key != "network"})
    network = found.embedded.network if found.embedded is not None else ""
    for key, value in wanted.items():
        have = network if key == "network" else str(getattr(found, key))
        if (value if key == "network" else getattr(meant, key)) != have:
            raise Usage(
                f"{found.folder} is a cluster with --{key} {have}",
                why=f"--{key} {value} was given, and that does not change once it is made",
                fix=f"leave it out, or make another cluster: holdfast up --cluster DIR --{key} …",
            )


def _closed(nodes: int, files: int) -> None:
    """What was open to everybody until now, in a cluster that an older version made."""
    if nodes:
        output.err().print(
            f"[yellow]closed:[/] {nodes} nodes of the coordination plane were open to whoever "
            "reached its port; now they need the cluster's secret"
        )
    if files:
        output.err().print(
            f"[yellow]closed:[/] other users of this machine could read {files} files and folders "
            "of the cluster; now they cannot"
        )


def _next(cluster: Cluster, *, new: bool) -> None:
    from holdfast.cluster.folder import FOLDER_NAME
    from holdfast.launch.cluster import default_folder

    found = default_folder() == cluster.folder
    option = "" if found else f" --cluster {cluster.folder}"
    console = output.out()
    if new and found and cluster.folder.name == FOLDER_NAME:
        place = cluster.folder.parent
        output.note(f"a new cluster: commands in {place} and below it find it by themselves")
    console.print("\n[dim]next[/]")
    commands = {
        f"holdfast submit job.yaml{option}": "a job",
        f"holdfast nodes{option}": "the machines",
        f"holdfast status{option}": "these processes",
        f"holdfast down{option}": "end all of it; jobs stay",
    }
    width = max(map(len, commands))
    for command, what in commands.items():
        console.print(f"  [cyan]{command:<{width}}[/]  [dim]{what}[/]")


# --- migrate --------------------------------------------------------------------------------------
# `holdfast migrate`.


MIGRATE_EXAMPLES: Final = """[bold]Examples[/]

  [cyan]holdfast down[/]                        on every machine, first

  [cyan]holdfast migrate[/]                     then on every machine, in any order

  [cyan]holdfast migrate --cluster DIR[/]       the cluster of that folder

  [cyan]holdfast migrate --json[/]              what was moved, for a program
"""


def migrate(cluster: ClusterOption = None, as_json: JsonOption = False) -> None:
    """Bring the cluster of an earlier version to this one: its nodes and folders get the names that
    they keep from now on.

    Once, after an upgrade, with the cluster down; it is refused while a part of it lives. Jobs,
    checkpoints, models and services stay. Run it on every machine of the cluster; the coordination
    plane is moved by the first of them. It may be run again at any time, also after it was killed.
    """
    from holdfast.launch import migrating
    from holdfast.launch.cluster import find

    found = find(cluster, of_older=True)
    with progress() as look:
        done = migrating.migrate(found, look=look)
    if as_json:
        output.show_json(
            {"folder": str(done.folder), "nodes": done.nodes, "files": list(done.files)}
        )
        return
    if not done.nodes and not done.files:
        output.out().print(f"{done.folder} is of this version; nothing to do")
        return
    output.out().print(f"{done.folder} is migrated: {done.nodes} nodes of the coordination plane")
    for name in done.files:
        output.out().print(f"  {name}")
    output.out().print("next: [cyan]holdfast up[/]")


# --- systemd --------------------------------------------------------------------------------------
# `holdfast up --systemd` and `--foreground`: a cluster that comes up with its machine.


# What is not passed on to the command in the unit: it is said there in another way, or is no part
# of what is to run.
_NOT_PASSED: Final = ("--systemd", "--foreground", "--json")
_SPECIAL: Final = {"%": "%%", "$": "$$", "\\": "\\\\", '"': '\\"'}

_UNIT: Final = """\
# A Holdfast cluster as a service of this machine. To install it:
#   holdfast up --systemd > holdfast.service
#   sudo cp holdfast.service /etc/systemd/system/
#   sudo systemctl daemon-reload && sudo systemctl enable --now holdfast
# Then end it with `sudo systemctl stop holdfast`.
[Unit]
Description=Holdfast cluster in {described}
Wants=network-online.target
After=network-online.target
# Its own supervisor knows when to give up.
StartLimitIntervalSec=0

[Service]
Type=exec
User={user}
Environment="PATH={path}"
ExecStart={holdfast} up{words} --cluster {folder} --foreground
ExecStop={holdfast} down --cluster {folder}
Restart=always
RestartSec=2
# `holdfast down` was said: that is no reason to start it again.
RestartPreventExitStatus={ended}
SuccessExitStatus={ended}
# Whatever the main process has started outlives it: workers and replicas go on while an agent, the
# supervisor or this service is started again. ExecStop ends them.
KillMode=process
# Workers have a notice to reach a step boundary.
TimeoutStopSec=90
LimitNOFILE=1048576

[Install]
WantedBy=multi-user.target
"""


def systemd_unit(folder: Path, arguments: Sequence[str]) -> str:
    """A systemd unit that brings up the cluster of this folder, with the holdfast that is in use
    and the options that were given with `up`."""
    from holdfast.supervise.supervisor import ENDED

    words = "".join(f" {_quoted(word)}" for word in _passed(arguments))
    return _UNIT.format(
        described=str(folder).replace("%", "%%"),
        user=getpass.getuser(),
        path=os.environ.get("PATH", os.defpath).replace("%", "%%").replace('"', '\\"'),
        holdfast=" ".join(_quoted(word) for word in program()),
        folder=_quoted(str(folder)),
        words=words,
        ended=ENDED,
    )


def program() -> list[str]:
    """The command line of the holdfast that is in use, with its full path."""
    found = shutil.which(sys.argv[0])
    if found is not None and Path(found).name == "holdfast":
        return [str(Path(found).absolute())]
    return [sys.executable, "-m", "holdfast"]


def stay(folder: Path) -> None:
    """Be the supervisor of the cluster, or wait until it is our turn, in place of this process."""
    from holdfast.supervise.spawn import environment

    command = [sys.executable, "-m", "holdfast.supervise", "--cluster", str(folder), "--wait"]
    sys.stdout.flush()
    os.execve(command[0], command, environment())  # noqa: S606 (it is our own interpreter)


def _passed(arguments: Sequence[str]) -> list[str]:
    """The options of `up` without those that the unit says itself."""
    words, left = [], list(arguments)
    while left:
        word = left.pop(0)
        if word == "up" or word in _NOT_PASSED or word.startswith("--cluster="):
            continue
        if word == "--cluster":
            left = left[1:]
            continue
        words.append(word)
    return words


def _quoted(word: str) -> str:
    """As a unit writes a word of a command line."""
    safe = "".join(_SPECIAL.get(letter, letter) for letter in word)
    return f'"{safe}"' if any(letter in " \t;'\"" for letter in safe) else safe
