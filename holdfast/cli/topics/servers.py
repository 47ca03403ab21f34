"""`holdfast topics serve` and `salvage`: a broker of one's own, and its folder after damage."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import output
from holdfast.cli.options import JsonOption

SERVE_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast topics serve --data ./topics[/]                      open, for this machine only

  [cyan]holdfast topics serve --data ./topics --sasl-users users[/]   NAME PASSWORD [[super]] a line

  [cyan]holdfast topics serve --data ./topics --listen 10.0.0.5:9092 --sasl-users users \\
      --tls-cert cert.pem --tls-key key.pem[/]
"""
SALVAGE_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast topics salvage ./topics ./topics-new[/]

  [cyan]holdfast topics serve --data ./topics-new[/]
"""


def serve(
    context: typer.Context,
    data: Annotated[Path, typer.Option(help="The folder of the broker's state; made if missing.")],
    listen: Annotated[
        str, typer.Option(help="HOST:PORT; port 0 takes any free one.")
    ] = "127.0.0.1:9092",
    advertise: Annotated[
        str, typer.Option(help="HOST:PORT that clients are told, if it is another one.")
    ] = "",
    sasl_users: Annotated[
        Path | None, typer.Option(help="Who may connect: NAME PASSWORD [[super|member]] a line.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM: serve TLS with this.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM: the certificate's key.")] = None,
    tls_ca: Annotated[
        Path | None, typer.Option(help="PEM: clients must show a certificate of this CA.")
    ] = None,
    auto_create: Annotated[
        bool, typer.Option(help="Whether topics are made by being asked for.")
    ] = True,
    partitions: Annotated[
        int, typer.Option(min=1, help="Of a topic that says nothing of them.")
    ] = 1,
    group_delay_ms: Annotated[
        int, typer.Option(min=0, help="How long a new group waits for more members.")
    ] = 0,
) -> None:
    """Run a broker here until it is told to stop (Ctrl-C, SIGTERM). Any Kafka client works with it.

    Without [cyan]--sasl-users[/] it is open to everybody on this machine, and listens on loopback
    only.
    """
    from holdfast.system import logs
    from holdfast.system.listening import is_loopback, split_address
    from holdfast.topics import hosting

    hosting.check_installed()  # before they are imported
    from holdfast.topics.broker.main import BrokerOptions
    from holdfast.topics.broker.main import serve as run_broker

    logs.set_up(context.obj or "info")  # a server tells more than a listing
    options = BrokerOptions(
        data=data.absolute(),
        listen=listen,
        advertise=advertise,
        users=sasl_users,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_ca=tls_ca,
        auto_create=auto_create,
        default_partitions=partitions,
        group_delay_ms=group_delay_ms,
    )
    if sasl_users is None and is_loopback(split_address(listen, "holdfast topics serve")[0]):
        output.err().print(
            "[yellow]open:[/] every process of this machine may read and write; "
            "--sasl-users FILE names who may"
        )
    raise typer.Exit(run_broker(options))


def salvage(
    folder: Annotated[Path, typer.Argument(help="The damaged data folder; it is not touched.")],
    target: Annotated[Path, typer.Argument(help="A new folder for what is provably good.")],
    as_json: JsonOption = False,
) -> None:
    """Write what is provably good of a broker's damaged folder to a new one, and say what is lost.

    No broker may use the folder meanwhile.
    """
    from holdfast.topics import hosting

    hosting.check_installed()  # before they are imported
    from holdfast.topics.broker.disk.salvage import salvage as save

    report = save(folder, target)
    if as_json:
        output.show_json({"loses": report.loses, **asdict(report)})
        return
    rows = [
        ("kept", f"{report.topics} topics, {report.batches} batches of records"),
        ("into", report.target),
    ]
    rows += [("damage", one) for one in report.damage]
    rows += [("LOST", one) for one in report.lost]
    if not report.loses:
        rows.append(("lost", "nothing"))
    output.out().print(output.table([], rows))
    output.out().print(f"[dim]next:[/] holdfast topics serve --data {report.target}")
