"""A meeting: every two members of a view connect and tell each other what they bring.

The higher number calls the lower one. Whoever is not there yet, but answers at its listener, is
waited for as long as it takes: it computes. Whoever does not answer for `MEET_S` is suspected, and
waited for too: who is in a view is decided elsewhere, and a newer view ends the meeting.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from holdfast.train.members.effective import lineage
from holdfast.train.members.greeting import Hello, PeerCall, epoch_of
from holdfast.train.members.listener import PeerListener
from holdfast.train.members.tls import Connection
from holdfast.train.members.wakeup import Wakeup
from holdfast.wire.errors import Refused
from holdfast.wire.handshake import stranger
from holdfast.wire.limits import PROBE_AFTER_S

# The same during a meeting: a peer that only computes answers at its listener.
MEET_S: Final = 10.0
# A caller waits so long before it calls again, and then twice as long, up to the second.
CALL_AGAIN_S: Final = 0.02
CALL_AGAIN_S_MAX: Final = 0.5

# A peer is suspected only after so many calls without an answer: a worker that was itself paused
# has not called anybody meanwhile.
_CALLS_MIN = 3


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What all members conclude from what they brought. `source` None: nobody holds a state."""

    source: int | None
    takers: tuple[int, ...] = ()  # who takes the source's state, ascending


def conclude(brought: Mapping[int, Hello]) -> Conclusion:
    """The most advanced gives its state, the lowest number among equals. Who holds the same step
    under the same settings holds the same state. Pure."""
    holders = [hello for hello in brought.values() if hello.step is not None]
    if not holders:
        return Conclusion(None)
    source = max(holders, key=lambda hello: (hello.step or 0, -hello.worker))
    step = source.step or 0

    def same(hello: Hello) -> bool:
        return hello.step == step and lineage(hello.record, step) == lineage(source.record, step)

    takers = tuple(sorted(hello.worker for hello in brought.values() if not same(hello)))
    return Conclusion(source.worker, takers)


class _Absent:
    """A member that is not there yet."""

    def __init__(self, now_s: float) -> None:
        self.call: PeerCall | None = None
        self.alive_s = now_s
        self.calls = 0  # since it was last heard
        self.again_s = now_s
        self.pause_s = CALL_AGAIN_S


class Meeting:
    """One meeting, run by the worker's own thread."""

    def __init__(
        self,
        listener: PeerListener,
        wakeup: Wakeup,
        mine: Hello,
        addresses: Mapping[int, str],
        peers: list[int],
    ) -> None:
        now_s = time.monotonic()
        self._listener = listener
        self._wakeup = wakeup
        self._mine = mine
        self._addresses = addresses
        self._peers = frozenset(peers)
        self._absent = {peer: _Absent(now_s) for peer in peers}
        for peer, absent in self._absent.items():
            if peer > mine.worker and mine.epoch.round == 0:
                absent.again_s += PROBE_AFTER_S  # it will call; ask only if it does not
        self.sockets: dict[int, Connection] = {}
        self.brought: dict[int, Hello] = {mine.worker: mine}

    def run(self, over: Callable[[], bool], suspects: Callable[[frozenset[int]], None]) -> bool:
        """Meet; False: it is `over` before all were there. `suspects` is told who does not
        answer, when that changes."""
        self._listener.begin(self._mine)
        suspected: frozenset[int] = frozenset()
        complete = False
        try:
            while True:
                self._wakeup.clear()
                for peer, (sock, hello) in self._listener.arrivals().items():
                    self._made(peer, sock, hello)
                if over() or self._listener.round > self._mine.epoch.round:
                    return False
                if not self._absent:
                    complete = True
                    return True
                silent = frozenset(peer for peer in self._absent if self._silent(peer))
                if silent != suspected:
                    suspected = silent
                    suspects(silent)
                self._call()
                self._progress(self._poll())
        finally:
            for absent in self._absent.values():
                if absent.call is not None:
                    absent.call.close()
            if not complete:
                self._part()

    def _part(self) -> None:
        for sock in self.sockets.values():
            sock.close()
        self.sockets = {}

    def _made(self, peer: int, sock: Connection, hello: Hello) -> None:
        if hello.epoch != self._mine.epoch or peer not in self._peers:
            sock.close()
            return
        former = self.sockets.pop(peer, None)
        if former is not None:
            former.close()  # it has called again: it has lost that one
        self.sockets[peer], self.brought[peer] = sock, hello
        absent = self._absent.pop(peer, None)
        if absent is not None and absent.call is not None:
            absent.call.close()

    def _silent(self, peer: int) -> bool:
        absent = self._absent[peer]
        return time.monotonic() > absent.alive_s + MEET_S and absent.calls >= _CALLS_MIN

    def _call(self) -> None:
        now_s = time.monotonic()
        for peer, absent in self._absent.items():
            if absent.call is not None or now_s < absent.again_s:
                continue
            kind = "meet" if peer < self._mine.worker else "probe"
            hello = replace(self._mine, kind=kind, to=peer)
            if kind == "probe":
                hello = replace(hello, record=())
            absent.calls += 1
            try:
                absent.call = PeerCall(
                    self._addresses.get(peer, ""), hello, self._listener.credentials
                )
            except OSError:
                self._later(absent)

    def _later(self, absent: _Absent) -> None:
        if absent.call is not None:
            absent.call.close()
            absent.call = None
        absent.again_s = time.monotonic() + absent.pause_s
        absent.pause_s = min(2 * absent.pause_s, CALL_AGAIN_S_MAX)

    def _poll(self) -> dict[int, int]:
        poll = select.poll()
        poll.register(self._wakeup, select.POLLIN)
        until_s = time.monotonic() + PROBE_AFTER_S
        for absent in self._absent.values():
            if absent.call is not None:
                poll.register(absent.call.frames.sock, absent.call.events)
            else:
                until_s = min(until_s, absent.again_s)
        return dict(poll.poll(max(0.0, until_s - time.monotonic()) * 1000))

    def _progress(self, ready: Mapping[int, int]) -> None:
        for peer, absent in list(self._absent.items()):
            call = absent.call
            if call is None:
                continue
            try:
                answer = call.progress(ready.get(call.frames.sock.fileno(), 0))
                if answer is not None:
                    absent.alive_s, absent.calls = time.monotonic(), 0
                    self._answered(peer, absent, call, answer)
            except (OSError, EOFError, Refused):
                self._later(absent)

    def _answered(self, peer: int, absent: _Absent, call: PeerCall, answer: dict[str, Any]) -> None:
        kind = answer.get("kind")
        if kind == "wait":
            return
        if kind in ("old", "here"):
            self._listener.note_epoch(epoch_of(answer))
            if kind == "here":
                absent.pause_s = PROBE_AFTER_S  # it is there, and will call
            self._later(absent)
            return
        hello = Hello.of(answer)
        mine = self._mine
        if (hello.job, hello.worker, hello.to) != (mine.job, peer, mine.worker):
            raise stranger(f"worker {hello.worker} of job {hello.job!r} answered")
        absent.call = None
        self._made(peer, call.frames.sock, hello)
