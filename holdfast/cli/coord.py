"""`holdfast coord`: serve the coordination plane, look at it, check its folder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import output

ADDRESS_VARIABLE = "HOLDFAST_COORD"
DEFAULT_ADDRESS = "zk://127.0.0.1:2181"
STATUS_TIMEOUT_S = 2.0

EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast coord serve --data ./coord --listen 127.0.0.1:2181[/]

  [cyan]holdfast coord status embedded:./coord[/]

  [cyan]holdfast coord status zk://h1,h2,h3 --json[/]

  [cyan]HOLDFAST_COORD=zk://127.0.0.1:2181 holdfast coord tree /holdfast[/]

  [cyan]holdfast coord check ./coord && holdfast coord salvage ./coord ./coord-new[/]


An address is [cyan]embedded:DIR[/], [cyan]zk://HOST:PORT,…/chroot?timeout_s=10[/] or HOST:PORT.
"""

app = typer.Typer(
    help="The coordination plane: the facts that everyone must agree on.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode="rich",
)

AddressOption = Annotated[
    str,
    typer.Option("--address", "-a", help="Which server or ensemble.", envvar=ADDRESS_VARIABLE),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


@app.command()
def serve(
    context: typer.Context,
    data: Annotated[Path, typer.Option(help="The folder of the server's state; made if missing.")],
    listen: Annotated[
        str, typer.Option(help="HOST:PORT; port 0 takes any free one.")
    ] = "127.0.0.1:2181",
    linger: Annotated[
        float | None, typer.Option(help="End so many seconds after the last client has gone.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM: serve TLS with this.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM: the certificate's key.")] = None,
    tls_ca: Annotated[
        Path | None, typer.Option(help="PEM: clients must show a certificate of this CA.")
    ] = None,
    network: Annotated[
        str,
        typer.Option(
            metavar="trusted",
            help="No TLS, also where other machines reach it: nobody else has access there.",
        ),
    ] = "",
    tick_ms: Annotated[
        int | None, typer.Option(help="Sessions may last from 2 to 20 of these.")
    ] = None,
    open_to_all: Annotated[
        bool,
        typer.Option("--open", help="Let everybody in who reaches the port, as ZooKeeper does."),
    ] = False,
) -> None:
    """Run a coordination server here until it is told to stop (Ctrl-C, SIGTERM).

    Whoever can read its folder is let in: [cyan]embedded:DIR[/] here, and elsewhere
    [cyan]zk://HOST:PORT?verify=secret&secret_file=FILE[/] with a copy of DIR/access. Where other
    machines reach it, it speaks TLS with certificates that the secret makes.
    """
    from holdfast.coordination.address import checked_network
    from holdfast.coordination.embedded.main import ServerOptions
    from holdfast.coordination.embedded.main import serve as run_server
    from holdfast.system import logs
    from holdfast.wire.limits import TICK_MS

    logs.set_up(context.obj or "info")  # a server tells more than a listing
    folder = data.absolute()
    output.err().print(
        f"[dim]next, from another terminal:[/] holdfast coord status embedded:{folder}\n"
        f'[dim]           and from Python:[/] holdfast.coordination.connect("embedded:{folder}")'
    )
    options = ServerOptions(
        data=folder,
        listen=listen,
        linger_s=linger,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_ca=tls_ca,
        network=checked_network(network),
        tick_ms=TICK_MS if tick_ms is None else tick_ms,
        open=open_to_all,
    )
    raise typer.Exit(run_server(options))


@app.command()
def status(
    address: Annotated[
        str, typer.Argument(help="Which server or ensemble.", envvar=ADDRESS_VARIABLE)
    ] = DEFAULT_ADDRESS,
    as_json: JsonOption = False,
) -> None:
    """How each server is: version, mode, zxid, nodes, watches, connections, latency.

    Ends with 75 when none of them answers.
    """
    from concurrent.futures import ThreadPoolExecutor

    from holdfast.cli import servers
    from holdfast.wire.errors import Unavailable

    places = servers.places(address)
    with ThreadPoolExecutor(len(places)) as pool:
        asked = [
            pool.submit(
                servers.status, place.host, place.port, timeout_s=STATUS_TIMEOUT_S, tls=place.tls
            )
            for place in places
        ]
        found = [one.result() for one in asked]
    if not any(one.answers for one in found):
        raise Unavailable(
            f"no server answers at {', '.join(one.address for one in found)}",
            why="nothing listens there, or it does not allow the word `srvr`",
            fix="holdfast coord serve --data ./coord   (or give another address)",
        )
    if as_json:
        output.show_json({"servers": [asdict(one) for one in found]})
        return
    for one in found:
        output.out().print(output.table([], _status_rows(one), title=one.address))


def _status_rows(one: object) -> list[tuple[str, object]]:
    from holdfast.cli.servers import ServerStatus

    assert isinstance(one, ServerStatus)
    if not one.answers:
        return [("state", "does not answer")]
    latency = "" if one.latency_ms_avg is None else f"{one.latency_ms_avg:g} ms on average"
    if one.latency_ms_max is not None:
        latency += f", {one.latency_ms_max:g} ms at most"
    rows: list[tuple[str, object]] = [
        ("version", one.version),
        ("mode", one.mode),
        ("zxid", one.zxid),
        ("nodes", one.nodes),
        ("ephemerals", one.ephemerals),
        ("watches", one.watches),
        ("connections", one.connections),
        ("latency", latency),
        ("round trip", f"{one.round_trip_ms} ms from here"),
        ("data folder", one.data_folder),
    ]
    if one.metrics.get("zk_holdfast_disk_full") == "1":
        rows.append(("writes", "STOPPED: the disk is full"))
    return [(name, value) for name, value in rows if value not in (None, "")]


@app.command()
def ls(
    path: Annotated[str, typer.Argument(help="An absolute path.")] = "/",
    address: AddressOption = DEFAULT_ADDRESS,
    as_json: JsonOption = False,
) -> None:
    """What is directly below a path."""
    _show_below(path, address, depth=1, as_json=as_json)


@app.command()
def tree(
    path: Annotated[str, typer.Argument(help="An absolute path.")] = "/",
    address: AddressOption = DEFAULT_ADDRESS,
    depth: Annotated[int, typer.Option(min=1, max=100, help="How many levels.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Everything below a path."""
    _show_below(path, address, depth=depth, as_json=as_json)


def _show_below(path: str, address: str, *, depth: int, as_json: bool) -> None:
    from holdfast.cli import servers
    from holdfast.coordination import connect, inspection

    path = inspection.checked(path)
    address = servers.with_scheme(address)
    if address.startswith("embedded:"):
        servers.places(address)  # looking must not start a server
    with connect(address) as session:
        found, cut = inspection.below(session, path, depth=depth)
    if depth == 1:
        found = found[1:]
    if as_json:
        nodes = [asdict(node) for node in found]
        output.show_json({"path": path, "complete": not cut, "nodes": nodes})
        return
    rows = [
        (
            node.path,
            node.children or "",
            node.version,
            "ephemeral" if node.ephemeral else "",
            node.data,
        )
        for node in found
    ]
    output.out().print(output.table(["node", "children", "version", "", "data"], rows))
    if cut:
        output.err().print("[yellow]there is more:[/] ask for a part: holdfast coord tree PATH")


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(help="A server's data folder.")],
    as_json: JsonOption = False,
) -> None:
    """Read every file of a data folder and verify it; changes nothing.

    Ends with 1 when something is damaged.
    """

    raise typer.Exit(check_folder(folder, as_json=as_json))


@app.command()
def salvage(
    folder: Annotated[Path, typer.Argument(help="The damaged data folder; it is not touched.")],
    target: Annotated[Path, typer.Argument(help="A new folder for what is provably good.")],
    as_json: JsonOption = False,
) -> None:
    """Write what is provably good of a damaged folder to a new one, and say what is lost."""

    salvage_folder(folder, target, as_json=as_json)


def check_folder(folder: Path, *, as_json: bool) -> int:
    """Show the state of every file; the exit code: 1 if something is damaged."""
    from holdfast.coordination.embedded import salvage as disk

    report = disk.check(folder)
    code = 0 if report.is_good else 1
    if as_json:
        found = {"good": report.is_good, "last_zxid": report.last_zxid, **asdict(report)}
        output.show_json(found)
        return code
    rows = [
        (
            "BAD" if one.problem else "good",
            one.name,
            one.bytes,
            one.entries,
            f"{one.first_zxid:#x}",
            f"{one.last_zxid:#x}",
            one.problem or one.note,
        )
        for one in report.files
    ]
    columns = ["", "file", "bytes", "entries", "first zxid", "last zxid", ""]
    console = output.out()
    console.print(output.table(columns, rows))
    for problem in report.problems:
        console.print("BAD ", problem, markup=False)
    if report.in_use:
        console.print("[dim]a server is using this folder now[/]")
    if report.is_good:
        console.print(f"[green]all good[/] up to zxid {report.last_zxid:#x}")
    else:
        console.print(
            f"[red]damaged[/]: restore a backup, or: holdfast coord salvage {folder} NEWDIR"
        )
    return code


def salvage_folder(folder: Path, target: Path, *, as_json: bool) -> None:
    """Save what is provably good, and show what is lost."""
    from holdfast.coordination.embedded import salvage as disk

    report = disk.salvage(folder, target)
    if as_json:
        output.show_json({"loses": report.loses, **asdict(report)})
        return
    rows = [
        ("kept", f"{report.nodes} nodes, up to zxid {report.kept_zxid:#x}"),
        ("from", f"{report.snapshot or 'no snapshot'} and {report.records} records"),
        ("into", report.target),
    ]
    rows += [("damage", one) for one in report.damage]
    if report.new_secret:
        rows.append(("sessions", "end: the folder's secret was lost, clients get new ones"))
    if report.loses:
        rows.append(("LOST", f"zxid {report.lost_first:#x} to {report.lost_last:#x}"))
    else:
        rows.append(("lost", "nothing"))
    output.out().print(output.table([], rows))
    output.out().print(f"[dim]next:[/] holdfast coord serve --data {report.target}")
