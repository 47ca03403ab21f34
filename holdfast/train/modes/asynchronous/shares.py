"""Checkpoints: each server writes what is at home with it, through the control plane's shares.

The member with the first share asks all servers to set their names aside, at one moment each, and
writes what there is in all: versions, the ledger, the inventory. Then each server writes what it
set aside. A member that serves nothing has nothing to write. Nobody stops for it, and no attempt is
missed: the checkpoint of step s holds what there was when the job had reached s.
"""

from __future__ import annotations

import threading
from typing import Any

from holdfast.storage import Blobs, Part, put_part
from holdfast.train.link import Link, Share
from holdfast.train.modes.asynchronous.messages import Peers, message
from holdfast.train.modes.asynchronous.tending import Household
from holdfast.train.states.sharing import part_buffers, parts_of
from holdfast.train.states.state import State, spell
from holdfast.wire import logs
from holdfast.wire.backoff import Backoff
from holdfast.wire.errors import HoldfastError, PeerLost
from holdfast.wire.limits import SAVE_AGAIN_S, SAVE_AGAIN_S_MAX

log = logs.get(__name__)


class Shares:
    """What this member writes of checkpoints. For the tending thread."""

    def __init__(self, link: Link, blobs: Blobs | None, household: Household, peers: Peers) -> None:
        self._link = link
        self._blobs = blobs
        self._household = household
        self._peers = peers
        self._written = 0  # the attempt that is written, or being written
        self._unwanted = threading.Event()

    def tend(self, step: int) -> None:
        """Answer what a checkpoint wants, if it can be answered now."""
        for share in self._link.shares():
            attempt = share.attempt
            if attempt.number == self._written or attempt.step > step:
                continue
            if self._blobs is None:
                self._link.missed(attempt.number)
            elif attempt.view == self._household.view.number:
                self._take(self._blobs, share)

    def close(self) -> None:
        self._unwanted.set()

    def _take(self, blobs: Blobs, share: Share) -> None:
        home, number = self._household, share.attempt.number
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
        threading.Thread(
            target=self._write, args=(blobs, number, parts, self._unwanted), daemon=True
        ).start()

    def _notes(self, share: Share) -> bytes | None:
        """The part that says what the whole state consists of."""
        home, attempt = self._household, share.attempt
        ask = {"ask": "freeze", "attempt": attempt.number, "view": attempt.view}
        inventory: list[Any] = []
        names: dict[str, Any] = {}
        ledger = None
        for server in home.ring.servers:
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
            names.update(answer.notes["said"]["names"])
            ledger = answer.notes["said"]["ledger"] or ledger
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
        self._link.part_done(attempt, tuple(done))


def is_async(state: State) -> bool:
    """Whether a checkpoint was written by this mode."""
    return "async" in state.notes
