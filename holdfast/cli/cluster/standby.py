"""`holdfast standby`: a coordinator on this machine, which leads when no other one does."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import output
from holdfast.cli.cluster.join import TokenArgument, TokenFileOption, asked_token, given_token
from holdfast.cli.options import ClusterOption
from holdfast.client import texts

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.cluster import Cluster
    from holdfast.control.shell.main import CoordinatorStatus, Tell

EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast token --standby[/]                  where the cluster was made, then here:

  [cyan]holdfast standby --token-file FILE[/]        until Ctrl-C; the next time without the token

  [cyan]holdfast standby --detach[/]                 in the background, kept alive

  [cyan]holdfast standby -[/]                        the token from stdin

  [cyan]holdfast standby --port 7001 --join-port 7002[/]   ports that a firewall lets through

  [cyan]holdfast standby --json | jq .event[/]       "stands by", "leads", "ended"
"""
PortOption = Annotated[
    int, typer.Option(help="Where agents connect; else that of last time.", min=0, max=65_535)
]
JoinPortOption = Annotated[
    int,
    typer.Option(
        "--join-port",
        "--door-port",  # as it was called before; for one release
        help="Where machines join; else that of last time.",
        min=0,
        max=65_535,
    ),
]


def standby(
    token: TokenArgument = None,
    token_file: TokenFileOption = None,
    cluster: ClusterOption = None,
    name: Annotated[
        str | None, typer.Option(help="What agents and people see; else of the machine's name.")
    ] = None,
    port: PortOption = 0,
    join_port: JoinPortOption = 0,
    detach: Annotated[
        bool, typer.Option("--detach", help="In the background, kept alive until holdfast down.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document a line, whenever it changes.")
    ] = False,
) -> None:
    """Run a second coordinator, on another machine: it leads when the first one is lost.

    Stays here until Ctrl-C, and says when it stands by and when it leads; with --detach it runs in
    the background, and a supervisor keeps it alive. With a token it needs
    nothing else, and the machine need not have joined; later it is started without. The token comes
    from --token-file or from stdin ([cyan]-[/]); the first time it is asked for. This machine has
    the cluster's authority then: guard it like the first one.
    """
    from holdfast.control.shell.main import CoordinatorOptions, serve
    from holdfast.launch import standby as launching
    from holdfast.launch.cluster import default_folder
    from holdfast.system import process
    from holdfast.wire.names import checked_name

    called = checked_name("coordinator", name) if name else launching.own_name()
    folder = default_folder(cluster)
    text = given_token(token, token_file, "holdfast standby")
    if text is None and sys.stdin.isatty() and not _may_lead(folder):
        text = asked_token()
    found = launching.ready(folder) if text is None else launching.lent(folder, text, called)
    if not as_json:
        _limits(found)
    if detach:
        _detached(found, called, port, join_port, as_json=as_json)
        return
    process.raise_file_limit()
    tell = _in_json(called) if as_json else _in_words(called, found)
    code = serve(CoordinatorOptions(found.folder, called, port, join_port), tell)
    if as_json:
        _line(event="ended", name=called)
    else:
        output.out().print(f"{texts.clock(time.time())}  {called} has ended")
    raise typer.Exit(code)


# --- private ------------------------------------------------------------------------------------


def _detached(found: Cluster, name: str, port: int, join_port: int, *, as_json: bool) -> None:
    from holdfast.launch import local
    from holdfast.launch.starting import await_all

    ports = ["--port", str(port)] if port else []
    ports += ["--join-port", str(join_port)] if join_port else []
    started = local.start_kept_coordinator(found, name, ports)

    def ready() -> dict[str, object] | None:
        process = started.process
        return dict(process.facts) if process is not None and "term" in process.facts else None

    facts = await_all([started], ready, f"the coordinator {name} stands by")
    if as_json:
        _line(event="leads" if facts["term"] else "stands by", name=name, **facts)
        return
    leads = f"leads (term {facts['term']})" if facts["term"] else "stands by"
    output.out().print(f"coordinator {name} {leads}, and is kept alive; log {started.log}")
    output.out().print("next: holdfast status, or holdfast down to end it", style="dim")


def _may_lead(folder: Path) -> bool:
    from holdfast.cluster import opened
    from holdfast.wire.errors import Missing

    try:
        return opened(folder).has_authority
    except Missing:
        return False


def _in_words(name: str, cluster: Cluster) -> Tell:
    known: list[str] = []

    def tell(said: CoordinatorStatus) -> None:
        # Nobody may read it any more; that does not end a coordinator.
        with suppress(OSError):
            console, now = output.out(), texts.clock(time.time())
            if not known:
                known.append(name)
                console.print(f"coordinator [bold]{name}[/] of cluster [bold]{cluster.name}[/]")
                rows = [("agents", said.address), ("machines join", said.join_address)]
                console.print(output.table([], [*rows, ("folder", cluster.folder)]))
            if said.term:
                console.print(f"{now}  leads (term {said.term})")
            elif said.leader is not None:
                other = said.leader
                console.print(f"{now}  stands by: {other.name} leads (term {other.term})")
            else:
                console.print(f"{now}  stands by")

    return tell


def _in_json(name: str) -> Tell:
    def tell(said: CoordinatorStatus) -> None:
        with suppress(OSError):
            _line(
                event="leads" if said.term else "stands by",
                name=name,
                term=said.term,
                leader=name if said.term else said.leader and said.leader.name,
                address=said.address,
                join_address=said.join_address,
                door=said.join_address,  # as it was called before; for one release
            )

    return tell


def _line(**fields: object) -> None:
    document = {**fields, "at_s": time.time()}
    sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def _limits(cluster: Cluster) -> None:
    """What a standby cannot do something about: a plane that is one server."""
    from holdfast.coordination.address import ZooKeeperAddress, parse

    plane = parse(cluster.coordination)
    if not isinstance(plane, ZooKeeperAddress) or len(plane.hosts) == 1:
        output.err().print(
            f"[yellow]the coordination plane is one server[/] ({plane}): when it is lost, nobody "
            "leads. An ensemble: holdfast up --coordination zk://h1,h2,h3, for a new cluster"
        )
