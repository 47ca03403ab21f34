"""What a replica is told when it is started: by its agent, or by hand."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.cluster import opened
from holdfast.coordination import Session, connect
from holdfast.storage import Blobs, open_store
from holdfast.wire import talk
from holdfast.wire.errors import Usage

_SHELF: Final = "serving"
_WORKERS: Final = "workers"  # in an agent's folder: above the folders of its workers


@dataclass(frozen=True, slots=True)
class Options:
    """`shelf`: where versions' files are kept; replicas of one machine share it."""

    service: str
    coordination: str
    store: str
    shelf: Path
    logs: Path
    worker: int = 0
    host: str = "127.0.0.1"
    http_port: int = 0
    grpc_port: int = 0
    region: str = ""
    node: str = ""

    @property
    def connect(self) -> Callable[[], Session]:
        return lambda: connect(self.coordination)

    def blobs(self) -> Blobs:
        return open_store(self.store)


def parsed(arguments: Sequence[str]) -> Options:
    """`Usage` if neither the environment nor a cluster's folder says where everything is."""
    parser = argparse.ArgumentParser(
        prog="python -m holdfast.serve.replica",
        description="One replica of a service. Agents start it; by hand it needs --cluster.",
        epilog="example: python -m holdfast.serve.replica digits --cluster .holdfast --port 8001",
    )
    parser.add_argument("service", metavar="SERVICE")
    parser.add_argument("--cluster", type=Path, metavar="DIR", help="the cluster's folder")
    parser.add_argument("--port", type=int, default=0, help="of HTTP; by hand only")
    parser.add_argument("--grpc-port", type=int, default=0, help="of gRPC; by hand only")
    parser.add_argument("--worker", type=int, default=0, help="its number; by hand only")
    parser.add_argument("--region", default="", help="where it is; by hand only")
    given = parser.parse_args(arguments)
    if given.cluster is not None:
        return _by_hand(given)
    return _by_agent(given.service, os.environ)


def _by_hand(given: argparse.Namespace) -> Options:
    cluster = opened(given.cluster)
    http_port, grpc_port = given.port or _free_port(), given.grpc_port or _free_port()
    return Options(
        service=given.service,
        coordination=cluster.coordination_here,
        store=cluster.store,
        shelf=cluster.folder / _SHELF,
        logs=cluster.logs_folder,
        worker=given.worker,
        host=cluster.listen,
        http_port=http_port,
        grpc_port=grpc_port,
        region=given.region,
    )


def _shelf(folder: Path) -> Path:
    """Where versions' files are kept: replicas of the agent's user share it. One with a user of its
    own has its own, since what is in there is run."""
    shared = folder.stat().st_uid == os.geteuid()
    return (_home(folder) if shared else folder / "work") / _SHELF


def _by_agent(service: str, environment: os._Environ[str]) -> Options:
    try:
        folder = Path(environment[talk.FOLDER_VARIABLE])
        http_port, grpc_port = (
            int(port) for port in environment[talk.PORTS_VARIABLE].split(",")[:2]
        )
        return Options(
            service=service,
            coordination=environment[talk.COORDINATION_VARIABLE],
            store=environment[talk.STORE_VARIABLE],
            shelf=_shelf(folder),
            logs=_home(folder) / "logs" / folder.name,
            worker=int(environment[talk.WORKER_VARIABLE]),
            host=environment.get(talk.HOST_VARIABLE, "127.0.0.1"),
            http_port=http_port,
            grpc_port=grpc_port,
            region=environment.get(talk.REGION_VARIABLE, ""),
            node=_node(folder),
        )
    except (KeyError, ValueError) as error:
        raise Usage(
            "this replica does not know where it is",
            why=f"no agent has started it ({type(error).__name__}: {error})",
            fix=f"give it the cluster's folder: python -m holdfast.serve.replica {service} "
            "--cluster DIR",
        ) from error


def _home(folder: Path) -> Path:
    """The agent's folder: what is kept there outlives each of its workers."""
    return folder.parent.parent if folder.parent.name == _WORKERS else folder


def _node(folder: Path) -> str:
    return folder.parent.parent.name if folder.parent.name == _WORKERS else ""


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
