"""How many workers each job is entitled to, by the sums of all machines together.

Claims are granted in this order; each takes from what the earlier ones have left:

1. minimums inside their queue's guarantee, by rank;
2. workers above the minimum inside the guarantee, by rank;
3. minimums that borrow, by rank;
4. workers above the minimum that borrow, by rank.

So a queue gets back what it is guaranteed, whoever has borrowed it. A minimum goes before anybody's
growth: nobody is stopped so that another may have more than it needs. But a job that starts never
shrinks one of higher rank: what such a job already has above its minimum is set aside first. Nor
does it take what a service of higher rank waits for: a service needs as many replicas as it is told
to have, and one that it has lost finds its room again.

Among equals those that run keep their minimum, then those that wait get theirs in the order of
their coming, then the rest is dealt out one worker at a time to whoever has the smallest dominant
share (the largest of its parts of all cpu, memory, gpu and disk). A tie goes to who has the worker
already, so that nothing moves for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import groupby

from holdfast.control.decide.capacity import (
    EMPTY,
    Amounts,
    above,
    amounts_of,
    minus,
    plus,
    times,
    within,
)
from holdfast.control.decide.claims import Claim
from holdfast.control.decide.facts import QueueQuota
from holdfast.control.decide.spec import Resources

# A part of a quota that is not counted.
_PLENTY = 1 << 80


def counted(quota: Resources) -> Amounts:
    """A quota that names only GPUs is about GPUs: what it leaves at 0 goes along, uncounted."""
    cpu, memory, gpu, disk = room = amounts_of(quota)
    if room == EMPTY:
        return EMPTY
    return (cpu or _PLENTY, memory or _PLENTY, gpu or _PLENTY, disk or _PLENTY)


def _surplus(claim: Claim) -> Amounts:
    """The room of the workers that it has, above its minimum, and that were not granted yet."""
    has = min(len(claim.held), claim.most)
    return times(claim.need, max(0, has - max(claim.target, claim.least)))


def _awaited(claim: Claim) -> Amounts:
    """The room of the replicas, above its minimum, that a service is told to have and has not."""
    if not claim.job.spec.serves or not claim.target:
        return EMPTY
    return times(claim.need, max(0, claim.most - max(claim.target, len(claim.held))))


class _QueueAccount:
    """What one queue may still take: inside its guarantee, and at all."""

    __slots__ = ("guaranteed", "limit", "set_aside")

    def __init__(self, queue: QueueQuota | None) -> None:
        self.guaranteed = counted(queue.guaranteed) if queue else EMPTY
        self.limit = counted(queue.limit) if queue and queue.limit else None
        self.set_aside = EMPTY


class Entitlements:
    """Grants targets to claims, which come in the order in which they get their minimum."""

    def __init__(
        self, claims: Sequence[Claim], total: Amounts, queues: Mapping[str, QueueQuota]
    ) -> None:
        self._groups = [list(group) for _, group in groupby(claims, key=lambda claim: claim.hold)]
        by_rank = sorted(claims, key=lambda claim: -claim.rank)
        self._ranks = [list(group) for _, group in groupby(by_rank, key=lambda claim: claim.rank)]
        self._total = total
        self._left = total
        self._accounts = {
            name: _QueueAccount(queues.get(name)) for name in {claim.queue for claim in claims}
        }
        for claim in claims:
            parts = zip(claim.need, total, strict=True)
            claim.share_unit = max(part / (whole or 1) for part, whole in parts)

    def grant(self) -> None:
        guarantees = any(any(of.guaranteed) for of in self._accounts.values())
        if guarantees:
            self._minimums_owned()
            for group in self._able():
                self._deal(group, owned=True)
        self._minimums_borrowed()
        for group in self._able():
            self._deal(group, owned=False)

    def _able(self) -> Iterator[list[Claim]]:
        """The claims that have their minimum and may have more, a rank at a time."""
        for group in self._ranks:
            able = [claim for claim in group if 0 < claim.target < claim.most]
            if able:
                yield able

    def _minimums_owned(self) -> None:
        """Inside the guarantee of a queue; what its jobs of higher rank have is set aside."""
        for group in self._groups:
            for claim in group:
                if claim.impossible or claim.blocked:
                    continue
                account = self._accounts[claim.queue]
                wanted = times(claim.need, claim.least)
                runs = len(claim.held) >= claim.least
                set_aside = EMPTY if runs else account.set_aside
                if within(plus(wanted, set_aside), account.guaranteed):
                    self._minimum(claim, wanted, owned=True)
            for claim in group:
                if claim.target:
                    account = self._accounts[claim.queue]
                    account.set_aside = plus(account.set_aside, _surplus(claim))
                    account.set_aside = plus(account.set_aside, _awaited(claim))

    def _minimums_borrowed(self) -> None:
        """From what is left, except what jobs of higher rank have above their minimum.

        That is set aside for them, as far as it will stay theirs: claims that were granted before
        and that nobody has the room for yet take free room first, then what jobs of lower rank
        have above their minimum, and then it. What services await is kept only from those that
        start: nobody is stopped for it.
        """
        claims = [claim for group in self._groups for claim in group]
        free = self._total
        below = coming = higher = out_of_reach = awaited = EMPTY
        for claim in claims:
            free = minus(free, times(claim.need, len(claim.held)))
            below = plus(below, _surplus(claim))
            coming = plus(coming, times(claim.need, max(0, claim.target - len(claim.held))))
        for group in self._groups:
            eaten = above(minus(coming, plus(above(free), below)))
            aside = plus(out_of_reach, above(minus(minus(higher, out_of_reach), eaten)))
            for claim in group:
                if claim.target or claim.impossible or claim.blocked:
                    continue
                wanted = times(claim.need, claim.least)
                kept = aside if len(claim.held) >= claim.least else plus(aside, awaited)
                if within(plus(wanted, kept), self._left) and self._minimum(claim, wanted):
                    missing = max(0, claim.least - len(claim.held))
                    coming = plus(coming, times(claim.need, missing))
            if coming == EMPTY:
                out_of_reach = higher
            for claim in group:
                higher = plus(higher, _surplus(claim))
                awaited = plus(awaited, _awaited(claim))
                below = minus(below, _surplus(claim))

    def _minimum(self, claim: Claim, wanted: Amounts, *, owned: bool = False) -> bool:
        account = self._accounts[claim.queue]
        if account.limit is not None and not within(wanted, account.limit):
            claim.at_limit = True
            return False
        if not within(wanted, self._left):
            return False
        self._take(claim, claim.least, owned)
        return True

    def _deal(self, group: list[Claim], *, owned: bool) -> None:
        """One worker at a time to the smallest dominant share."""
        self._deal_held(group, owned)
        heap = [
            (claim.target * claim.share_unit, claim.target >= len(claim.held), place)
            for place, claim in enumerate(group)
            if claim.target < claim.most
        ]
        heapify(heap)
        while heap:
            place = heap[0][2]
            claim = group[place]
            if not self._allowed(claim, claim.need, owned):
                heappop(heap)
                continue
            self._take(claim, 1, owned)
            if claim.target >= claim.most:
                heappop(heap)
            else:
                share = claim.target * claim.share_unit
                heapreplace(heap, (share, claim.target >= len(claim.held), place))

    def _deal_held(self, group: list[Claim], owned: bool) -> None:
        """Give everyone at once the workers that it has and that come before the first worker
        that anybody would have to be given anew. Only a short cut: it changes no result."""
        level = min(
            (len(claim.held) * claim.share_unit for claim in group if len(claim.held) < claim.most),
            default=float("inf"),
        )
        bulk: list[tuple[Claim, int]] = []
        wanted = EMPTY
        by_queue: dict[str, Amounts] = {}
        for claim in group:
            enough = min(len(claim.held), claim.most)
            if level != float("inf") and claim.share_unit:
                below = int(level / claim.share_unit)
                enough = min(enough, below)
            if enough > claim.target:
                room = times(claim.need, enough - claim.target)
                bulk.append((claim, enough - claim.target))
                wanted = plus(wanted, room)
                by_queue[claim.queue] = plus(by_queue.get(claim.queue, EMPTY), room)
        if not within(wanted, self._left):
            return
        for name, room in by_queue.items():
            account = self._accounts[name]
            if owned and not within(room, account.guaranteed):
                return
            if account.limit is not None and not within(room, account.limit):
                return
        for claim, count in bulk:
            self._take(claim, count, owned)

    def _allowed(self, claim: Claim, wanted: Amounts, owned: bool) -> bool:
        account = self._accounts[claim.queue]
        if account.limit is not None and not within(wanted, account.limit):
            claim.at_limit = True
            return False
        if owned and not within(wanted, account.guaranteed):
            return False
        return within(wanted, self._left)

    def _take(self, claim: Claim, count: int, owned: bool) -> None:
        room = times(claim.need, count)
        account = self._accounts[claim.queue]
        self._left = minus(self._left, room)
        account.guaranteed = minus(account.guaranteed, room)
        if account.limit is not None:
            account.limit = minus(account.limit, room)
        claim.target += count
        if owned:
            claim.owned += count
