"""Names that a shell completes: jobs, services, models, machines, queues of the cluster.

The shell asks while somebody waits with a finger on the key. So the cluster is asked for a second
at most (HOLDFAST_COMPLETION_S, where that is not enough), and whatever stands against it (there is
no cluster, it is down, it does not answer) is no news: nothing is completed, and nothing is said.
"""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Final

import typer

from holdfast.wire.names import JOBS_PATH, MODELS_PATH, NODES_PATH, QUEUES_PATH, SERVICES_PATH

# A shell that completes a name: somebody waits with a finger on the key.
COMPLETION_S: Final = 1.0

PATIENCE_VARIABLE: Final = "HOLDFAST_COMPLETION_S"
_DEFAULT_QUEUE: Final = "default"


def jobs(context: typer.Context, incomplete: str) -> list[str]:
    """Jobs; and services, which have replicas where jobs have workers."""
    return _named(context, incomplete, JOBS_PATH, SERVICES_PATH)


def services(context: typer.Context, incomplete: str) -> list[str]:
    return _named(context, incomplete, SERVICES_PATH)


def models(context: typer.Context, incomplete: str) -> list[str]:
    return _named(context, incomplete, MODELS_PATH)


def nodes(context: typer.Context, incomplete: str) -> list[str]:
    return _named(context, incomplete, NODES_PATH)


def queues(context: typer.Context, incomplete: str) -> list[str]:
    """Those that have a record, and the one that every cluster has."""
    found = _named(context, incomplete, QUEUES_PATH)
    return sorted({*found, *(name for name in (_DEFAULT_QUEUE,) if name.startswith(incomplete))})


def _named(context: typer.Context, incomplete: str, *paths: str) -> list[str]:
    """Names below these paths that begin so."""
    given = context.params.get("cluster")
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            found = _asked(given if isinstance(given, Path) else None, paths)
    except Exception:  # whatever it is: nobody has asked a question that an error would answer
        return []
    return sorted(name for name in found if name.startswith(incomplete))


def _asked(folder: Path | None, paths: tuple[str, ...]) -> set[str]:
    # Before the clock runs: how long Python takes for these is nobody's fault.
    import holdfast.control.store.plane  # noqa: F401
    from holdfast.client.opening import opened
    from holdfast.coordination import inspection
    from holdfast.system import logs

    logs.set_up("critical")
    patience_s = float(os.environ.get(PATIENCE_VARIABLE) or COMPLETION_S)
    with _bounded(patience_s), opened(folder, patience_s=patience_s) as cluster:
        return {
            name
            for path in paths
            for name in inspection.names(cluster.session, path, empty=path != SERVICES_PATH)
        }


@contextmanager
def _bounded(seconds: float) -> Iterator[None]:
    """An error after so long, wherever it waits."""

    def over(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
