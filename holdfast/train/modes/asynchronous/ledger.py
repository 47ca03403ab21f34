"""Which batches are done, under way, and to come. Pure: no clock, no network.

A *ticket* is a number: the batch of lane `ticket % lanes` in the `ticket // lanes`-th step of the
loop's data. So an epoch has the batches that it has in the synchronous mode. Tickets are given out
in order to whoever asks; those of a worker that is gone are given out again.

The ledger may come back a little older than it was (its server died, its copy is some moments old).
Workers say with every question what they hold, and after a view change what they have done lately:
so it knows again, except for what the dead have done. Batches that were done twice are counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple


class Credit(NamedTuple):
    """What an acknowledgement has completed: steps `first_step + 1` to `step` of the run, and
    epochs up to `epoch`, if `epoch` is greater than `first_epoch`. Given to one worker only, which
    runs the hooks for it."""

    first_step: int
    step: int
    first_epoch: int
    epoch: int

    @property
    def completes(self) -> bool:
        return self.step > self.first_step or self.epoch > self.first_epoch


@dataclass(slots=True)
class TicketLedger:
    """The tickets of loop number `loop`, and a few things that all workers have to agree on."""

    lanes: int
    loop: int = -1
    steps: int = 0  # of an epoch
    epochs: int | None = None
    base: int = 0  # steps of the loops before
    stop: bool = False
    next: int = 0  # the first ticket that was never given out
    low: int = 0  # all tickets below are done
    done: set[int] = field(default_factory=set)  # and these, from `low` on
    out: dict[int, int] = field(default_factory=dict)  # ticket -> the worker that has it
    again: set[int] = field(default_factory=set)  # to be given out once more
    duties: set[int] = field(default_factory=set)  # workers that run hooks
    doing: dict[str, int] = field(default_factory=dict)  # once: place -> the worker that does it
    results: dict[str, Any] = field(default_factory=dict)  # place -> what came of it
    metrics: dict[str, float] = field(default_factory=dict)  # what hooks have logged
    repeated: int = 0  # batches that were done twice
    lost: int = 0  # tickets that somebody had who is gone
    version: int = 0

    @property
    def completed(self) -> int:
        """Steps that are complete."""
        return self.base + (self.low + len(self.done)) // self.lanes

    @property
    def epoch(self) -> int:
        """Epochs of this loop that are complete."""
        return self.low // (self.steps * self.lanes) if self.steps else 0

    @property
    def _end(self) -> int | None:
        return None if self.epochs is None else self.epochs * self.steps * self.lanes

    @property
    def over(self) -> bool:
        """Whether the loop has nothing more to do, hooks included."""
        if self.duties:
            return False
        return not self.out if self.stop else self._end is not None and self.low >= self._end

    def enter(self, loop: int, steps: int, epochs: int | None) -> None:
        """A worker is in this loop; the first one begins it."""
        if loop <= self.loop:
            return
        self.version += 1
        # A step that was begun counts: the weights have had some of it.
        self.base += -(-(self.low + len(self.done)) // self.lanes)
        self.loop, self.steps, self.epochs, self.stop = loop, steps, epochs, False
        self.next = self.low = 0
        self.done, self.out, self.again = set(), {}, set()
        self.duties = set()

    def take(self, worker: int, want: int) -> list[int]:
        """Up to `want` tickets for this worker; fewer towards the end, so that it comes at once for
        all."""
        if self.stop:
            return []
        self.version += 1
        found = sorted(self.again)[:want]
        self.again -= set(found)
        end = self._end
        if end is not None:
            left = end - self.next
            want = min(want, max(1, left // (4 * self.lanes)), left + len(found))
        while len(found) < want:
            found.append(self.next)
            self.next += 1
        self.out.update(dict.fromkeys(found, worker))
        return found

    def acknowledge(self, worker: int, tickets: Iterable[int]) -> Credit:
        """These batches are done, and their gradients pushed."""
        before = (self.completed, self.epoch)
        self.version += 1
        for ticket in tickets:
            if ticket < self.low or ticket in self.done:
                self.repeated += 1
            self._is_done(ticket)
        credit = Credit(before[0], self.completed, before[1], self.epoch)
        if credit.completes:
            self.duties.add(worker)
        return credit

    def settled(self, worker: int) -> None:
        """It has run the hooks that it owed."""
        self.duties.discard(worker)

    def recall(self, worker: int, held: Iterable[int], lately: Iterable[int]) -> None:
        """What this worker holds, and what it has done lately: it may be news after a move."""
        for ticket in lately:
            if ticket >= self.next:
                self._skip_to(ticket)
            self._is_done(ticket)
        for ticket in held:
            if ticket < self.low or ticket in self.done:
                continue
            if ticket >= self.next:
                self._skip_to(ticket)
            self.out.setdefault(ticket, worker)
            self.again.discard(ticket)

    def members(self, living: Collection[int]) -> None:
        """Nobody else is there any more."""
        gone = {ticket for ticket, worker in self.out.items() if worker not in living}
        if gone:
            self.version += 1
            self.lost += len(gone)
            self.again |= gone
            self.out = {t: worker for t, worker in self.out.items() if t not in gone}
        self.duties &= set(living)
        self.doing = {place: worker for place, worker in self.doing.items() if worker in living}

    def give_back(self, tickets: Iterable[int]) -> None:
        """A worker leaves without having begun these."""
        self.version += 1
        for ticket in tickets:
            if self.out.pop(ticket, None) is not None:
                self.again.add(ticket)

    def claim(self, worker: int, place: str) -> bool:
        """Whether this worker is the one that does what all of them ask for."""
        return self.doing.setdefault(place, worker) == worker

    def result(self, place: str, value: Any) -> None:
        self.version += 1
        self.results[place] = value
        self.doing.pop(place, None)

    def body(self) -> dict[str, Any]:
        """As JSON."""
        found = asdict(self)
        for key in ("done", "again", "duties"):
            found[key] = sorted(found[key])
        found["out"] = [[ticket, worker] for ticket, worker in self.out.items()]
        return found

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> TicketLedger:
        sets = {key: set(body[key]) for key in ("done", "again", "duties")}
        out = {int(ticket): int(worker) for ticket, worker in body["out"]}
        return cls(**{**body, **sets, "out": out})

    def _is_done(self, ticket: int) -> None:
        self.out.pop(ticket, None)
        self.again.discard(ticket)
        if ticket >= self.low:
            self.done.add(ticket)
        while self.low in self.done:
            self.done.discard(self.low)
            self.low += 1

    def _skip_to(self, ticket: int) -> None:
        """Somebody knows a later ticket than we do: those between are somebody's, or lost."""
        self.again.update(range(self.next, ticket))
        self.next = ticket + 1
