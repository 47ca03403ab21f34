"""A gateway as a process: options in, an exit code out.

    python -m holdfast.serve.gateway --cluster DIR --name NAME --listen HOST:PORT --region R

SIGTERM and SIGINT end it: Envoy takes no new connections, ends what is in flight, and ends too. A
gateway that is killed leaves its Envoy, which goes on with what it knew; the next one adopts it.
"""

from __future__ import annotations

import argparse
import os
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from holdfast.cluster import Cluster, opened, register, ties
from holdfast.serve.gateway.applying import Applying, Files
from holdfast.serve.gateway.envoy import Envoy, program
from holdfast.serve.gateway.gateway import GatewayLoop
from holdfast.serve.gateway.resources import bootstrap
from holdfast.serve.gateway.state import Front, GatewayTls
from holdfast.serve.gateway.watching import PlaneWatcher, address_of
from holdfast.serve.priority import give_way
from holdfast.serve.protocol.marks import release
from holdfast.system import disk, process
from holdfast.wire.errors import Usage
from holdfast.wire.names import checked_name


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """How a gateway is started. `concurrency` 0: half of the cores."""

    cluster: Path
    name: str
    front: Front
    concurrency: int = 0
    tied: bool = False


def parsed(arguments: Sequence[str]) -> GatewayOptions:
    parser = argparse.ArgumentParser(
        prog="python -m holdfast.serve.gateway",
        description="One address for all services of a cluster. `holdfast serve` starts it.",
        epilog="example: python -m holdfast.serve.gateway --cluster .holdfast --name eu-1 "
        "--region eu --regions us,asia --listen 0.0.0.0:8080",
    )
    add = parser.add_argument
    add("--cluster", type=Path, required=True, help="the cluster's folder")
    add("--name", required=True, help="what people see of it")
    add("--listen", required=True, metavar="HOST:PORT", help="where clients connect")
    add("--region", default="", help="whose replicas are asked first")
    add("--regions", default="", help="the other regions, the nearest first, with commas")
    add("--tls-certificate", type=Path, help="a certificate chain (PEM); needs --tls-key")
    add("--tls-key", type=Path, help="its private key (PEM)")
    add("--concurrency", type=int, default=0, help="threads of Envoy; 0: half of the cores")
    add("--no-access-log", action="store_true", help="write no line for each request")
    add("--tied", action="store_true", help="end with the parent (its pipe: stdin)")
    given = parser.parse_args(arguments)
    host, port = _listen(given.listen)
    front = Front(
        host,
        port,
        given.region,
        tuple(word for word in given.regions.split(",") if word),
        _tls(given.tls_certificate, given.tls_key),
        not given.no_access_log,
        release(),
    )
    name = checked_name("gateway", given.name)
    return GatewayOptions(given.cluster, name, front, given.concurrency, given.tied)


def folder_of(cluster: Cluster, name: str) -> Path:
    """Where a gateway has its files, its logs, and its last knowledge."""
    return cluster.folder / "gateways" / name


def serve(options: GatewayOptions) -> int:
    """Run a gateway until it is told to stop. Raises what keeps it from starting."""
    cluster = opened(options.cluster)
    program()
    stop = threading.Event()
    with ExitStack() as stack:
        folder = folder_of(cluster, options.name)
        with disk.room_for(folder):
            registration = stack.enter_context(
                register(cluster, "gateway", options.name, kept=not options.tied)
            )
            disk.make_folder(folder, 0o700)
        gateway, envoy = _made(cluster, options, folder)

        def end() -> None:
            stop.set()
            gateway.wake()

        process.on_termination(end)
        if options.tied:
            ties.watch(end)
        gateway.begin()
        registration.note(address=gateway.address, region=options.front.region)
        watching = PlaneWatcher(cluster.session, gateway.wake, give_way)
        watching.start()
        stack.callback(envoy.stop)
        stack.callback(watching.close)
        gateway.run(watching, stop)
    return 0


def _made(cluster: Cluster, options: GatewayOptions, folder: Path) -> tuple[GatewayLoop, Envoy]:
    concurrency = options.concurrency or max(1, (os.cpu_count() or 1) // 2)
    front = options.front

    def ended() -> None:
        gateway.wake()

    envoy = Envoy(
        cluster,
        options.name,
        folder,
        bootstrap(options.name, front.region),
        front=front,
        concurrency=concurrency,
        ended=ended,
    )
    applying = Applying(Files(folder), envoy.admin)
    gateway = GatewayLoop(options.name, front, folder, envoy, applying)
    return gateway, envoy


def _listen(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise Usage(f"{text!r} is no address to listen on", fix="give HOST:PORT: 127.0.0.1:8080")
    try:
        return address_of(host), int(port)
    except OSError as error:
        raise Usage(
            f"{host!r} is no host to listen on",
            why=str(error),
            fix="give an address of this machine",
        ) from error


def _tls(certificate: Path | None, key: Path | None) -> GatewayTls | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise Usage("TLS needs two files", fix="give both --tls-certificate and --tls-key")
    for path in (certificate, key):
        if not path.is_file():
            raise Usage(f"{path} is not there", fix="give the file of a certificate and its key")
    return GatewayTls(str(certificate.absolute()), str(key.absolute()))
