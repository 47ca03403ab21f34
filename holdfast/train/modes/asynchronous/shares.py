"""Checkpoints: each server writes what is at home with it, through the control plane's shares.

The member with the first share asks all servers to set their names aside, at one moment each, and
writes what there is in all: versions, the ledger, the inventory. Then each server writes what it
set aside. A member that serves nothing has nothing to write. Nobody stops for it, and no attempt is
missed: the checkpoint of step s holds what there was when the job had reached s.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

from holdfast.storage import Blobs, Part, put_part
from holdfast.system import logs
from holdfast.system.backoff import Backoff
from holdfast.system.tasks import Died, OwnedThread, start_thread
from holdfast.train.modes.asynchronous.messages import Peers, message
from holdfast.train.modes.asynchronous.shard_server import ShardServer
from holdfast.train.states.checkpoints import part_buffers, parts_of
from holdfast.train.states.state import TrainingState, spell
from holdfast.wire.errors import HoldfastError, PeerLost
from holdfast.wire.limits import SAVE_AGAIN_S, SAVE_AGAIN_S_MAX, THREAD_END_S
from holdfast.worker.agent_client import AgentClient, WantedShare

log = logs.get(__name__)


class ShareWriter:
    """What this member writes of checkpoints. For the maintenance loop."""

    def __init__(
        self,
        agent: AgentClient,
        blobs: Blobs | None,
        server: ShardServer,
        peers: Peers,
        died: Died,
    ) -> None:
        """`died`: a thread that wrote a share has died, and with it the share."""
        self._agent = agent
        self._blobs = blobs
        self._server = server
        self._peers = peers
        self._written = 0  # the attempt that is written, or being written
        self._unwanted = threading.Event()
        self._died = died
        self._thread: OwnedThread | None = None

    def answer(self, step: int) -> None:
        """Answer what a checkpoint wants, if it can be answered now."""
        for share in self._agent.shares():
            attempt = share.attempt
            if attempt.number == self._written or attempt.step > step:
                continue
            if self._blobs is None:
                self._agent.missed(attempt.number)
            elif attempt.view == self._server.view.number:
                self._take(self._blobs, share)

    def close(self) -> None:
        self._unwanted.set()
        if self._thread is not None:
            self._thread.join(THREAD_END_S)

    def _take(self, blobs: Blobs, share: WantedShare) -> None:
        home, number = self._server, share.attempt.number
        parts: list[bytes] = []
        if share.share == 0:
            notes = self._notes(share)
            if notes is None:
                return  # somebody is not ready: look again
            parts.append(notes)
        if home.mine:
            frozen = home.frozen
            if frozen is None or frozen[0] != number:
                return  # not asked yet by the one with the notes
            parts += [b"".join(part_buffers(plan)) for plan in parts_of(frozen[1])]
        self._written = number
        self._unwanted.set()
        self._unwanted = threading.Event()
        write = partial(self._write, blobs, number, parts, self._unwanted)
        self._thread = start_thread(write, "holdfast-save", self._died)

    def _notes(self, share: WantedShare) -> bytes | None:
        """The part that says what the whole state consists of."""
        home, attempt = self._server, share.attempt
        ask = {"ask": "freeze", "attempt": attempt.number, "view": attempt.view}
        inventory: list[Any] = []
        names: dict[str, Any] = {}
        ledger = None
        for server in home.servers:
            try:
                answer = (
                    home.freeze(message(ask))
                    if server == home.worker
                    else self._peers.call(home.view.addresses[server], ask)
                )
            except PeerLost:
                return None
            if not answer.notes["ready"]:
                return None
            inventory += answer.notes["entries"]
            names.update(answer.notes["frozen"]["names"])
            ledger = answer.notes["frozen"]["ledger"] or ledger
        notes = {"async": {"names": names, "ledger": ledger}, "lanes": home.lanes}
        whole = {"step": attempt.step, "notes": notes, "entries": sorted(inventory)}
        return b"".join(spell((), whole))

    def _write(
        self, blobs: Blobs, attempt: int, parts: list[bytes], unwanted: threading.Event
    ) -> None:
        done: list[Part] = []
        again = Backoff(SAVE_AGAIN_S, SAVE_AGAIN_S_MAX)
        while len(done) < len(parts):
            try:
                done.append(put_part(blobs, memoryview(parts[len(done)]), still=True))
                again.succeeded()
            except HoldfastError as error:
                log.warning("a share of a checkpoint waits", attempt=attempt, reason=str(error))
                if unwanted.wait(again.failed()):
                    return
        self._agent.part_done(attempt, tuple(done))


def is_async(state: TrainingState) -> bool:
    """Whether a checkpoint was written by this mode."""
    return "async" in state.notes
