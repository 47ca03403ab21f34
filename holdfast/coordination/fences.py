"""Fences: what a fresh read is sent behind, so that its answer is no older than its question.

Usually a `sync`: the server catches up with the leader, then answers the read. The leader's own
server answers it alone, from its memory, even if others have replaced it and it does not know yet.
That is not enough for whoever looks for a write whose reply was lost: not to see it must mean that
it was not done, and will not be. So that look is behind a *vote*: a transaction that changes
nothing. Most of the ensemble take part in it, and it is decided after all that was proposed before.
What this session sent over an older connection, and was not proposed by then, is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from kazoo.client import KazooClient

from holdfast.coordination.life import Life
from holdfast.coordination.together import Behind
from holdfast.coordination.waits import Deadline
from holdfast.wire.errors import Unavailable


class Gate(Protocol):
    """What fences and nodes need of their session. `link` is the number of its connection."""

    link: int
    operation_timeout_s: float

    def await_connected(self, deadline: Deadline, life: Life | None = None) -> Life: ...

    def unavailable(self) -> Unavailable: ...


class Fences:
    """The fences of one session. Thread-safe."""

    def __init__(self, gate: Gate, client: KazooClient, root: str) -> None:
        self._gate = gate
        self._client = client
        self._root = root or "/"
        self._lock = threading.Lock()
        self._lost = 0
        self._decided = 0

    def doubt(self) -> None:
        """The reply to a write was lost: the next fresh read, whoever asks, is behind a vote."""
        with self._lock:
            self._lost += 1

    def before(self, path: str, ask: Callable[[], Any]) -> Callable[[], Behind]:
        """Sends a fence, then `ask`. The answers count together, over one connection, or not."""

        def send() -> Behind:
            link, lost = self._gate.link, self._lost
            fence = self.vote() if lost > self._decided else self.sync(path)

            def counts() -> bool:
                if self._gate.link != link:
                    return False
                with self._lock:
                    self._decided = max(self._decided, lost)
                return True

            return Behind(fence, ask(), counts)

        return send

    def sync(self, path: str = "/") -> Any:
        """Answered by the leader through another server; by the leader's own server, alone."""
        return self._client.sync_async(path)

    def vote(self) -> Any:
        """Answered by most of the ensemble. Whether its check holds does not matter: one that
        fails is voted upon as well."""
        request = self._client.transaction()
        request.check(self._root, -1)
        return request.commit_async()
