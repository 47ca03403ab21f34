"""A thread that looks after whoever waits for a peer in a mesh.

A peer may take long for its lanes: that is no fault. So when nothing has come for a while, its door
is asked. Silence there, several times and for `PEER_SILENCE_S`, breaks the mesh, with that peer as
the suspect. A peer that answers from another meeting breaks it too: it will never send anything.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from holdfast.train.members.calls import knock
from holdfast.train.members.hello import Epoch, Hello
from holdfast.train.members.mesh import Mesh
from holdfast.wire.errors import PeerLost
from holdfast.wire.job_credentials import Credentials
from holdfast.wire.limits import KNOCK_AFTER_S, PEER_SILENCE_S
from holdfast.wire.tasks import Died, start_thread

_ASKED_MIN: Final = 3


class Watch:
    """The watch of one worker, for one mesh at a time. `told(True)` is called when somebody has
    waited for peers for a while, `told(False)` when that is over; `died` when nobody watches."""

    def __init__(
        self, credentials: Credentials, worker: int, told: Callable[[bool], None], died: Died
    ) -> None:
        self._credentials = credentials
        self._job = credentials.job
        self._worker = worker
        self._told = told
        self._mesh: Mesh | None = None
        self._addresses: Mapping[int, str] = {}
        self._silent: dict[int, tuple[float, int]] = {}  # peer -> unanswered since, how often
        self._end = threading.Event()
        self._thread = start_thread(self._run, "holdfast-watch", died)

    def over(self, mesh: Mesh, addresses: Mapping[int, str]) -> None:
        """Watch this mesh from now on."""
        self._addresses = addresses
        self._mesh = mesh

    def close(self) -> None:
        self._end.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        said, watched = False, None
        while not self._end.wait(KNOCK_AFTER_S / 2):
            mesh = self._mesh
            if mesh is not watched:
                watched, self._silent = mesh, {}
            late = self._late(mesh) if mesh is not None and mesh.broken is None else []
            if bool(late) != said:
                said = bool(late)
                self._told(said)
            if mesh is not None:
                self._silent = {peer: self._silent[peer] for peer in late if peer in self._silent}
                if late:
                    self._ask(mesh, late)

    def _late(self, mesh: Mesh) -> list[int]:
        now_s = time.monotonic()
        waiting = mesh.waiting().items()
        return sorted(peer for peer, since_s in waiting if now_s > since_s + KNOCK_AFTER_S)

    def _ask(self, mesh: Mesh, peers: list[int]) -> None:
        epoch = Epoch(mesh.view, mesh.round)
        hellos = {peer: Hello("knock", self._job, self._worker, peer, epoch) for peer in peers}
        asked_s = time.monotonic()
        found = knock(
            hellos,
            self._addresses,
            lambda: mesh.broken is None and not self._closed,
            self._credentials,
        )
        for peer in peers:
            where = found.get(peer)
            if where is None:
                since_s, times = self._silent.get(peer, (asked_s, 0))
                self._silent[peer] = (since_s, times + 1)
                if times + 1 >= _ASKED_MIN and time.monotonic() > since_s + PEER_SILENCE_S:
                    why = f"nothing was heard from it for {PEER_SILENCE_S:g} s"
                    lost = f"worker {peer} does not answer"
                    mesh.close(PeerLost(lost, why=why, peer=peer, suspect=True))
                continue
            self._silent.pop(peer, None)
            if where > epoch:
                mesh.close(PeerLost(f"worker {peer} meets elsewhere by now", peer=peer))

    @property
    def _closed(self) -> bool:
        return self._end.is_set()
