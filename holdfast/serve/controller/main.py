"""A controller as a process: options in, an exit code out.

    python -m holdfast.serve.controller --cluster DIR --name NAME

Any number of them run over one cluster, and one leads. SIGTERM and SIGINT end it, and the next one
leads at once. One that is killed leaves nothing behind: its place in the election goes with its
session, and replicas and gateways go on with the last plan.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from holdfast.cluster import opened, register, ties
from holdfast.cluster.sessions import awaited_session
from holdfast.serve.controller.controller import RolloutController
from holdfast.serve.priority import give_way
from holdfast.system import logs, process
from holdfast.wire.errors import Cancelled
from holdfast.wire.names import checked_name

log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """How a controller is started."""

    cluster: Path
    name: str
    tied: bool = False


def parsed(arguments: Sequence[str]) -> ControllerOptions:
    parser = argparse.ArgumentParser(
        prog="python -m holdfast.serve.controller",
        description="Advances the rollouts of a cluster's services.",
    )
    parser.add_argument("--cluster", type=Path, required=True, help="the cluster's folder")
    parser.add_argument("--name", required=True, help="what people see of it")
    parser.add_argument("--tied", action="store_true", help="end with the parent (its pipe: stdin)")
    given = parser.parse_args(arguments)
    return ControllerOptions(given.cluster, checked_name("controller", given.name), given.tied)


def serve(options: ControllerOptions) -> int:
    """Run a controller until it is told to stop. 0 if all is well."""
    cluster = opened(options.cluster)
    stop = threading.Event()
    with ExitStack() as stack:
        registration = stack.enter_context(
            register(cluster, "controller", options.name, kept=not options.tied)
        )
        give_way()  # not before: it may start a supervisor, which is not to give way
        process.on_termination(stop.set)
        if options.tied:
            ties.watch(stop.set)
        try:
            session = stack.enter_context(awaited_session(cluster, stop))
        except Cancelled:
            return 0
        controller = RolloutController(
            session, options.name, tell=lambda term: registration.note(term=term)
        )
        controller.run(stop)
    return 0
