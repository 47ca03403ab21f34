"""The iterator behind `for batch in run.batches(...)`."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator

from holdfast.train import counting, going_on
from holdfast.train.data.batch import Batch
from holdfast.train.data.order import Ticket
from holdfast.train.data.source import Source
from holdfast.train.data.streams import Read
from holdfast.train.modes.rounds import Rounds
from holdfast.wire.reports import SAMPLES_METRIC, TOTAL_METRIC


class Loop(Iterator[Batch]):
    """Loop number `number` of the script. Where it stands is the run's position, not its own: it
    may begin in the middle, go back to a lost lane, jump ahead, or have nothing to do at all."""

    def __init__(self, rounds: Rounds, source: Source, number: int, epochs: int | None) -> None:
        self._rounds = rounds
        self._source = source
        self._number = number
        self._epochs = epochs
        self._parts: deque[Ticket | Read] = deque()  # of the lane under way, still to be computed
        self._kept: Batch | None = None  # what loader processes have fetched, for the second time
        self._entered = self._left = False

    def __next__(self) -> Batch:
        rounds = self._rounds
        if not self._entered:
            self._entered = True
            frame = sys._getframe(1)
            counting.check(frame)
            rounds.outlook, rounds.updates = self._outlook, self._source.updates
            rounds.enter(self._number, self._epochs)
            if rounds.position.loop == self._number:
                going_on.check(rounds, {"seed": rounds.seed, **self._source.facts})
                rounds.watch_hooks(counting.names_read(frame), self._source.data)
        rounds.between_batches()
        while not self._left and not self._over():
            if self._parts:
                return self._give(self._parts.popleft())
            lane = rounds.next_lane()
            if lane is None:
                rounds.complete(self._source)
                continue
            position = rounds.position
            tickets = self._source.tickets(position, lane)
            more = self._source.more(position, lane)
            if tickets:
                rounds.begin_lane(lane, tickets, source=self._source, more=more)
                self._parts.extend(tickets)
            else:
                rounds.empty_lane(lane, more=more)
        if not self._left:
            self._left = True
            rounds.leave(self._number)
            self._source.close()
        raise StopIteration

    def _give(self, ticket: Ticket | Read) -> Batch:
        rounds, update = self._rounds, self._rounds.position.update
        rehearses = rounds.rehearses(ticket)
        if rehearses and ticket.lane and (first := self._source.first(rounds.position)):
            self._parts.appendleft(ticket)
            rounds.rehearses_first_lane()
            batch = self._source.get(first, update)
            rounds.before_batch(first)
            return batch
        batch = self._kept or self._source.get(ticket, update)
        self._kept = None
        rounds.after_fetch(ticket, self._source)
        if rehearses:
            mine = batch if self._source.repeats else batch.copied()
            if mine is None:
                rounds.skip_rehearsal()
            else:
                self._parts.appendleft(ticket)
                self._kept = None if self._source.repeats else batch
                batch = mine
        rounds.before_batch(ticket)
        return batch

    def _outlook(self) -> dict[str, float]:
        """What people are told of the way ahead, as far as it is known."""
        position, steps = self._rounds.position, self._source.steps
        now = self._source.left(position)
        if steps is None or now is None or self._epochs is None:
            return {}
        batches = now + steps * (self._epochs - position.epoch - 1)
        left = batches * self._source.updates - position.update
        total = float(self._rounds.member.step + max(0, left))
        return {TOTAL_METRIC: total, SAMPLES_METRIC: float(self._source.samples)}

    def _over(self) -> bool:
        """Settle what the last step has left to do; whether that was all."""
        rounds = self._rounds
        if rounds.position.loop != self._number:
            return True
        rounds.settle()
        position = rounds.position
        return position.loop != self._number or position.over(self._epochs)
