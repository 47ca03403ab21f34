"""The connection of a client: the cluster, the threads and the gateways that its handles share."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final, ParamSpec, Self, TypeVar

from holdfast.client import opening
from holdfast.client.futures import Futures, closed
from holdfast.client.opening import Note, Opened
from holdfast.client.predicting import Gateways
from holdfast.system import logs
from holdfast.wire.errors import Usage

# Calls of one client at a time: predictions as futures, verbs of an async client. A machine that
# sends more has several processes.
CLIENT_THREADS_MAX: Final = 32

P = ParamSpec("P")
T = TypeVar("T")
_log = logs.get(__name__)
_THREADS: Final = "holdfast-client"


class ClusterConnection:
    """A cluster, connected until `close`; what `Client`, `Job` and `Service` stand on."""

    def __init__(
        self,
        cluster: str | os.PathLike[str] | None = None,
        *,
        reads: bool = False,
        note: Note | None = None,
    ) -> None:
        self.note: Note = _remark if note is None else note
        self.futures = Futures()
        self.gateways = Gateways()
        self.threads = Threads()
        self._stack = ExitStack()
        self._closing = threading.Lock()
        self._pid = os.getpid()
        self._found: Opened | None = self._stack.enter_context(
            opening.opened(_folder(cluster), reads=reads, note=self.note)
        )

    def close(self) -> None:
        """End what it has begun; what is waited for ends with `Cancelled`. Jobs and services go on.
        May be called twice."""
        with self._closing:
            self._found = None
            self.futures.close()
            self.gateways.close()
            self.threads.close()
            self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        where = "closed" if self._found is None else self._found.cluster.folder
        return f"<{type(self).__name__} {where}>"

    @property
    def found(self) -> Opened:
        """The cluster, connected: for what this class has no verb for."""
        found = self._found
        if found is None:
            raise closed()
        if os.getpid() != self._pid:
            raise Usage(
                "this client was made before the process forked",
                why="its connection and its threads stayed with the parent",
                fix="make one in the child: with Client() as client: ...",
            )
        opening.check_up(found)
        return found

    @property
    def down(self) -> bool:
        """Whether the cluster does not run, and this is what it has left."""
        return self.found.down


class Threads:
    """The threads of a client's predictions and of its async form: started when they are needed,
    and ended by `close`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False

    def submit(self, call: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> Future[T]:
        """Call it on one of them."""
        with self._lock:
            if self._closed:
                raise closed()
            if self._pool is None:
                self._pool = ThreadPoolExecutor(CLIENT_THREADS_MAX, _THREADS)
            return self._pool.submit(call, *arguments, **keywords)

    def close(self) -> None:
        """Begin nothing more, and wait for what is under way. May be called twice."""
        with self._lock:
            self._closed = True
            pool = self._pool
        if pool is not None:
            # One of them may be who closes: it does not wait for itself.
            within = threading.current_thread().name.startswith(_THREADS)
            pool.shutdown(wait=not within, cancel_futures=True)


def _remark(words: str) -> None:
    _log.info(words)


def _folder(cluster: str | os.PathLike[str] | None) -> Path | None:
    if isinstance(cluster, str) and "://" in cluster:
        raise Usage(
            f"a client needs the folder of a cluster, not the address {cluster}",
            why="in the folder are the cluster's addresses and who this machine is to it",
            fix="holdfast join makes one on this machine; then: Client(folder)",
        )
    return None if cluster is None else Path(cluster)
