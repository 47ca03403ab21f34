"""Tickets between a worker and the ledger's home.

A worker asks when it has none left: it says which are done, which it still holds, and gets the next
ones. While the ledger is away it goes on with those that it has, then waits.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from holdfast.train.modes.asynchronous.ledger import Credit
from holdfast.train.modes.asynchronous.server import nothing
from holdfast.train.modes.asynchronous.shard_server import ShardServer
from holdfast.train.states.state import TrainingState

# A worker takes as many tickets at a time as it computes in this time, within these bounds: they
# are what it goes on with while the ledger is away, and what its death gives out again.
ASYNC_LEASE_S: Final = 0.25
ASYNC_LEASE_MAX: Final = 8
# Tickets that a worker remembers having done, for a ledger that comes back older: more than it can
# do between two copies of the ledger.
ASYNC_LATELY_MAX: Final = 1_024


def answer(server: ShardServer, request: TrainingState) -> TrainingState:
    """At the ledger's home."""
    asked, worker = request.notes, int(request.notes["from"]["worker"])
    with server.lock:
        ledger = server.ledger
        if ledger is None:
            return nothing(here=False)
        # Whoever asks has run the hooks that it owed.
        ledger.settled(worker)
        if asked["loop"] is not None:
            ledger.enter(*asked["loop"])
        if asked["loop"] is None or asked["loop"][0] == ledger.loop:
            ledger.recall(worker, asked["held"], asked["lately"])
            credit = ledger.acknowledge(worker, asked["done"]) if asked["done"] else None
            if worker not in server.view.lanes:
                ledger.settled(worker)  # it is about to leave: nobody waits for its hooks
        else:
            credit = None  # it speaks of a loop that is over
        ledger.stop = ledger.stop or asked["stop"]
        ledger.metrics.update(asked["metrics"])
        ledger.give_back(asked["back"])
        behind = asked["loop"] is not None and asked["loop"][0] < ledger.loop
        owes = worker in ledger.duties or behind
        tickets = ledger.take(worker, asked["want"]) if asked["want"] and not owes else []
        counts = {"repeated": ledger.repeated, "lost": ledger.lost}
        return nothing(
            here=True,
            tickets=tickets,
            credit=None if credit is None else list(credit),
            step=ledger.completed,
            epoch=asked["loop"][2] if behind and asked["loop"][2] else ledger.epoch,
            over=ledger.over or behind,
            metrics=ledger.metrics,
            counts=counts,
        )


def once(server: ShardServer, request: TrainingState) -> TrainingState:
    """One of those who ask for the same does it; the others get what came of it."""
    asked, worker = request.notes, int(request.notes["from"]["worker"])
    with server.lock:
        ledger = server.ledger
        if ledger is None:
            return nothing(here=False)
        if "value" in asked:
            ledger.result(asked["place"], asked["value"])
        if asked["place"] in ledger.results:
            return nothing(here=True, value=ledger.results[asked["place"]])
        return nothing(here=True, yours=ledger.claim(worker, asked["place"]))


class HeldTickets:
    """A worker's tickets. `ask` puts a question to the ledger's home; it raises `PeerLost`."""

    def __init__(self, ask: Callable[[Mapping[str, Any]], TrainingState]) -> None:
        self._ask = ask
        self.held: deque[int] = deque()
        self._current: int | None = None
        self._done: list[int] = []  # and not said yet
        self._lately: deque[int] = deque(maxlen=ASYNC_LATELY_MAX)
        self._began_s = 0.0
        self._batch_s = ASYNC_LEASE_S
        self._loop: tuple[int, int, int | None] | None = None
        self.to_report: dict[str, float] = {}  # metrics of hooks that are to be told
        self.stop = False
        self.moved = True  # the ledger may have come back older: tell what was done lately
        self.over = False
        self.step = self.epoch = 0
        self.metrics: dict[str, float] = {}
        self.counts: dict[str, int] = {}

    def enter(self, loop: int, steps: int, epochs: int | None) -> None:
        self._loop = (loop, steps, epochs)
        self.held.clear()
        self._lately.clear()
        self.epoch = 0
        self.over = self.stop = False

    @property
    def inside(self) -> bool:
        """Whether the script is in a loop, so that `epoch` is of that loop."""
        return self._loop is not None

    def begin(self) -> int:
        """The next ticket that is held."""
        self._current, self._began_s = self.held.popleft(), time.monotonic()
        return self._current

    def end(self) -> None:
        """Its batch is done and pushed."""
        assert self._current is not None
        self._done.append(self._current)
        self._current = None
        self._batch_s += (time.monotonic() - self._began_s - self._batch_s) / 4

    def ask(self, *, more: bool = True, back: bool = False) -> Credit | None:
        """Say what is done; with `more` get the next tickets; with `back` give back what is held.
        What this worker has to run hooks for, if anything."""
        want = max(1, min(ASYNC_LEASE_MAX, int(ASYNC_LEASE_S / max(self._batch_s, 1e-6))))
        want -= len(self.held)
        given_back = list(self.held) if back else []
        held = [*([] if self._current is None else [self._current]), *self.held]
        answer = self._ask(
            {
                "ask": "tickets",
                "loop": self._loop,
                "done": self._done,
                "held": held,
                "back": given_back,
                "lately": list(self._lately) if self.moved else [],
                "want": max(0, want) if more and not back else 0,
                "stop": self.stop,
                "metrics": self.to_report,
            }
        ).notes
        self._lately.extend(self._done)
        self._done, self.to_report = [], {}
        self.moved = False
        if back:
            self.held.clear()
        self.held.extend(answer["tickets"])
        # A ledger that came back older counts again what the dead have done: no step is unmade.
        self.step = max(self.step, answer["step"])
        self.epoch, self.over = answer["epoch"], answer["over"]
        self.metrics, self.counts = answer["metrics"], answer["counts"]
        credit = answer["credit"]
        return None if credit is None else Credit(*credit)
