"""`holdfast token`, `join`: letting another machine in. A token is a secret, and is read from where
other users of a machine do not see it: not from a command line, which everybody can list."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import output
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
from holdfast.cli.options import ClusterOption

if TYPE_CHECKING:
    from holdfast.cluster import Cluster

LETTING_IN_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast token --valid 10m[/]                a machine: holdfast join

  [cyan]holdfast token --uses 16[/]                  sixteen machines, with one token

  [cyan]holdfast token --node gpu-7[/]               for a machine that takes the place of gpu-7

  [cyan]holdfast token --standby[/]                  a coordinator: holdfast standby
"""
JOIN_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast token --valid 10m[/]                on a machine of the cluster, then here:

  [cyan]holdfast join --node gpu-7[/]                it asks for the token

  [cyan]holdfast join --token-file token.txt[/]      from a file

  [cyan]ssh head holdfast token | holdfast join -[/]   from another machine, seen by nobody

  [cyan]holdfast join --foreground[/]                until Ctrl-C, which ends its workers too
"""
TokenArgument = Annotated[
    str | None, typer.Argument(metavar="[-]", help="- reads the token from stdin.")
]
TokenFileOption = Annotated[
    Path | None, typer.Option("--token-file", help="A file with the token.", exists=True)
]


def token(
    cluster: ClusterOption = None,
    valid: Annotated[str, typer.Option(help="How long: 10m, 2h, 1d.")] = "1h",
    node: Annotated[
        str | None, typer.Option(help="Good for this name only, also if a node had it before.")
    ] = None,
    uses: Annotated[int, typer.Option(help="How many machines it lets in.", min=1)] = 1,
    standby: Annotated[
        bool, typer.Option("--standby", help="For holdfast standby, which may lead.")
    ] = False,
) -> None:
    """Print a token with which another machine may join, once, for a while. It is a secret."""
    from holdfast.launch import joining
    from holdfast.launch.cluster import find
    from holdfast.wire.tokens import TokenKind

    found = find(cluster)
    kind = TokenKind.STANDBY if standby else TokenKind.JOIN
    text = joining.token(found, life_s=_seconds(valid), node=node, kind=kind, uses=uses)
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
    token: TokenArgument = None,
    token_file: TokenFileOption = None,
    cluster: ClusterOption = None,
    node: Annotated[str | None, typer.Option(help="This node's name; else the machine's.")] = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay here until Ctrl-C; workers end then too.")
    ] = False,
    cpu: CpuOption = None,
    memory: MemoryOption = None,
    gpu: GpuOption = None,
    gpu_share: GpuShareOption = None,
    disk: DiskOption = None,
    region: RegionOption = None,
) -> None:
    """Join this machine to a cluster, with a token, and start its agent.

    Asks for the token; or reads it from --token-file, or from stdin ([cyan]-[/]).
    """
    from holdfast.launch import joining, local
    from holdfast.launch.cluster import default_folder

    text = given_token(token, token_file, "holdfast join") or asked_token()
    joined = joining.join(default_folder(cluster), text, node)
    sizes = (memory_bytes(memory), memory_bytes(disk, "--disk"))
    size = local.AgentSize(cpu, sizes[0], gpu, None, region, gpu_share, sizes[1])
    if foreground:
        _serve_here(joined.cluster, joined.node, size)
        return
    with progress() as look, joined.cluster.session() as session:
        started = local.start_kept_agent(joined.cluster, size, joined.node)
        report: Callable[[str], None] = lambda what: look(f"waiting for {what}")  # noqa: E731
        leader = local.await_ready(joined.cluster, session, [started], look=report)
    output.out().print(
        f"node {joined.node} has joined cluster {joined.cluster.name}, led by {leader.name}"
    )
    output.out().print(f"  folder {joined.cluster.folder}\n  log    {started.log}")
    output.out().print("next: holdfast nodes, or holdfast down to leave", style="dim")


def given_token(argument: str | None, file: Path | None, command: str) -> str | None:
    """The token from stdin or a file; None: neither was named. `Usage`: it stands in the command
    line, where every user of this machine has seen it by now."""
    from holdfast.wire.errors import Usage

    if argument not in (None, "-"):
        raise Usage(
            "a token is not given in the command line",
            why="every user of this machine can list it, and it lets a machine in",
            fix=f"{command} (it asks for the token), {command} --token-file FILE, or {command} - "
            "to read it from stdin; if others use this machine, make a new one: holdfast token",
        )
    if argument is not None and file is not None:
        raise Usage("the token comes from stdin or from a file, not both", fix="keep one of them")
    if file is not None:
        return file.read_text().strip()
    return sys.stdin.read().strip() if argument is not None else None


def asked_token() -> str:
    """The token, from whoever sits at the terminal; it is not shown. Without one: from stdin."""
    return (getpass.getpass("token: ") if sys.stdin.isatty() else sys.stdin.read()).strip()


# --- private ------------------------------------------------------------------------------------


def _serve_here(cluster: Cluster, node: str, size: Any) -> None:
    from holdfast.agent.main import Options, serve
    from holdfast.system import logs

    logs.set_up("info")
    options = Options(
        cluster.folder,
        node,
        size.cpu,
        size.memory_bytes,
        size.gpu,
        region=size.region or "",
        gpu_share=size.gpu_share or 1,
        disk_bytes=size.disk_bytes,
    )
    raise typer.Exit(serve(options))


def _seconds(text: str) -> float:
    from holdfast.control.decide import units
    from holdfast.wire.errors import Usage

    found = units.seconds_of(text)
    if found is None:
        raise Usage(f"--valid {text} is not {units.DURATION_EXAMPLE}", fix="write it as 10m")
    return found
