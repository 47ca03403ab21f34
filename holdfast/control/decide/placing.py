"""Machines for the workers that jobs are entitled to, and whose room they take for it.

For each worker, in this order: room that is free; room that is soon free; room of workers that
somebody has above its own share, as long as that job keeps its minimum (*shrink*); and only then
whole jobs that have no share any more (*stop*), lowest rank first, then those that lose least work
since their last committed checkpoint.
"""

from __future__ import annotations

from collections import Counter
from heapq import heapify, heappop, heappush
from math import inf

from holdfast.control.decide import sentences
from holdfast.control.decide.capacity import (
    EMPTY,
    Amounts,
    Capacity,
    minus,
    plus,
    slots,
    times,
    within,
)
from holdfast.control.decide.claims import Claim, World
from holdfast.control.decide.entitlements import counted
from holdfast.control.decide.facts import Placement

# Workers of one claim that are drained together.
_Taken = tuple[Claim, list[Placement]]
_TOO_DEAR = (inf, 0)


class Placing:
    """One try to give every claim its target. The decisions are left in the claims."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.capacity = Capacity(world.free, world.soon)
        self.newly_blocked = False
        self.leaving = {node: dict(names) for node, names in world.leaving.items()}
        self._hopeless: dict[Amounts, int] = {}
        self._first: list[Claim | None] | None = None
        self._left_in: dict[str, Amounts] = {}
        for name, queue in world.queues.items():
            if queue.limit is not None:
                self._left_in[name] = counted(queue.limit)
        for claim in world.claims:
            self._use(claim, len(claim.held))

    def settle(self) -> None:
        """Give the minimums, then the rest; drain what has to go for it."""
        for claim in self.world.claims:
            if len(claim.held) > claim.most + claim.surge:
                count = len(claim.held) - claim.most - claim.surge
                self._shrink(claim, count, sentences.scaled(claim))
        self._keep_limits()
        starting = [
            claim for claim in self.world.claims if claim.target and claim.staying < claim.least
        ]
        for claim in sorted(starting, key=lambda claim: not claim.owned):
            self._start(claim)
        for claim in self.world.claims:
            if claim.target > claim.staying + len(claim.adds) + len(claim.promised):
                self._grow(claim)
        self._keep_limits()

    def fill(self) -> None:
        """Use free room that nobody has a claim to: small jobs slip past what blocks big ones, and
        who gave way may go on elsewhere. What is left on drained machines then has to stop."""
        failed: dict[Amounts, int] = {}
        for claim in self.world.claims:
            if claim.impossible or claim.promised:
                continue
            missing = claim.least - claim.staying - len(claim.adds)
            if missing > 0 and not self._fill_minimum(claim, missing, failed):
                continue
            most = claim.most + (0 if claim.moving else claim.surge)
            wanted = most - claim.staying - len(claim.adds) - len(claim.moving)
            wanted = min(wanted, self._limit_slots(claim))
            if wanted <= 0 or failed.get(claim.need) == 1:
                continue
            if not self._add_now(claim, wanted, whole=False):
                failed[claim.need] = 1
        self._clear_drained_machines()

    def _fill_minimum(self, claim: Claim, missing: int, failed: dict[Amounts, int]) -> bool:
        if missing >= failed.get(claim.need, missing + 1):
            return False
        if self._limit_slots(claim) < missing:
            claim.at_limit = True
            return False
        if not self._add_now(claim, missing, whole=True):
            failed[claim.need] = missing
            return False
        if claim.stopped:
            claim.stopped = ""
            why = sentences.moves_on(claim)
            claim.evicted = dict.fromkeys(claim.evicted, why)
        return True

    def first_to_wait(self) -> list[Claim | None]:
        """For each kind of thing, the first who has no worker and needs it. For when all is
        decided: it is looked up once."""
        if self._first is None:
            self._first = [None] * len(EMPTY)
            for claim in self.world.claims:
                if claim.staying or claim.adds or claim.impossible:
                    continue
                for kind, part in enumerate(claim.need):
                    if part and self._first[kind] is None:
                        self._first[kind] = claim
        return self._first

    def free_slots(self, claim: Claim) -> int:
        """How many of its workers would fit into what is free now."""
        return self.capacity.count(claim.need)

    def dispensable(self, claim: Claim) -> list[Placement]:
        """Its workers, in the order in which it would give them up."""
        return _dispensable(claim)

    # --- giving ---------------------------------------------------------------------------------

    def _start(self, claim: Claim) -> None:
        """All of the minimum that is missing: now, or promised, or not at all."""
        count = claim.least - claim.staying
        if self._limit_slots(claim, with_excess=True) < count:
            claim.at_limit = True
            self._block(claim)
            return
        if self._add_now(claim, count, whole=True):
            return
        mark = self.capacity.mark()
        found = self._find(claim, count)
        found += self.capacity.promise(claim.need, count - len(found))
        if len(found) < count:
            self.capacity.back_to(mark)
            hopeless = self._hopeless.get(claim.need, count + 1)
            taken = None if count >= hopeless else self._take(claim, count, stop=True)
            if taken is None:
                self._hopeless[claim.need] = min(count, hopeless)
                self._block(claim)
                return
            found = taken
        claim.promised += found
        self._use(claim, count)

    def _grow(self, claim: Claim) -> None:
        if claim.blocked or claim.stopped:
            return
        has = claim.staying + len(claim.adds) + len(claim.promised)
        count = min(claim.target - has, claim.most - has - len(claim.moving))
        count = min(count, self._limit_slots(claim, with_excess=True))
        if count <= 0:
            return
        pending = bool(claim.promised)
        found = self._find(claim, count)
        (claim.promised if pending else claim.adds).extend(found)
        rest = count - len(found)
        if rest:
            later = self.capacity.promise(claim.need, rest)
            rest -= len(later)
            if rest and self._hopeless.get(claim.need, 2) > 1:
                owned = claim.owned > claim.staying + len(claim.adds) + len(later)
                later += self._take(claim, rest, stop=owned, partly=True) or []
            claim.promised += later
            count = len(found) + len(later)
        self._use(claim, count)

    def _add_now(self, claim: Claim, count: int, *, whole: bool) -> bool:
        mark = self.capacity.mark()
        found = self._find(claim, count)
        if whole and len(found) < count:
            self.capacity.back_to(mark)
            return False
        claim.adds += found
        self._use(claim, len(found))
        return bool(found)

    def _find(self, claim: Claim, count: int) -> list[str]:
        """Free room for up to `count` of its workers, which is taken."""
        has = _counts(claim)
        barred = self._barred(claim)
        if claim.job.spec.serves or barred is not None:
            return self.capacity.spread(claim.need, count, has, barred)
        # The machines that the job already uses first, the fullest first.
        near = sorted(has, key=lambda node: (-has[node], node))
        return self.capacity.pack(claim.need, count, near)

    def _barred(self, claim: Claim) -> set[str] | None:
        """Machines where its fixed ports are in use; None: it has none."""
        ports = claim.job.spec.fixed_ports
        if not ports:
            return None
        barred = {node for node, used in self.world.ports.items() if not ports.isdisjoint(used)}
        for other in self.world.claims:
            if not ports.isdisjoint(other.job.spec.fixed_ports):
                barred.update(other.adds)
        return barred

    def _block(self, claim: Claim) -> None:
        claim.blocked = True
        self.newly_blocked = True

    # --- taking ---------------------------------------------------------------------------------

    def _take(
        self, claim: Claim, count: int, *, stop: bool, partly: bool = False
    ) -> list[str] | None:
        """Drain workers until `count` of the claim's fit; no more than it needs.

        None, and nothing is drained, if it is not enough (with `partly`: if nothing was won).
        """
        mark = self.capacity.mark()
        found = self._find(claim, count)
        found += self.capacity.promise(claim.need, count - len(found))
        taken: list[_Taken] = []
        found += self._win(claim, count - len(found), taken)
        if stop and len(found) < count:
            whole = [other for other in self.world.claims if other.excess and not other.target]
            for victim in sorted(whole, key=lambda other: (other.hold, other.lost_s)):
                stays = [p for p in victim.held if p.worker not in victim.evicted]
                self._evict(victim, stays, taken)
                found += self._win(claim, count - len(found), taken)
                if len(found) == count:
                    break
        if len(found) < count and not (partly and found):
            for victim, placements in taken:
                for placement in placements:
                    del victim.evicted[placement.worker]
                self._use(victim, len(placements))
            self.capacity.back_to(mark)
            return None
        self._spare(taken)
        for victim, placements in taken:
            self._explain(victim, placements, claim)
        return found

    def _win(self, claim: Claim, count: int, taken: list[_Taken]) -> list[str]:
        """Drain single workers, where the fewest of the lowest rank make room for one more."""
        others = [other for other in reversed(self.world.claims) if other is not claim]
        others.sort(key=lambda other: other.rank)
        spare = {other.name: min(other.excess, other.staying - other.least) for other in others}
        there: dict[str, list[tuple[Claim, Placement]]] = {}
        for _, placements in taken:
            for placement in placements:
                there.setdefault(placement.node, [])
        for other in others:
            if spare[other.name] > 0:
                for placement in reversed(other.held):
                    if placement.worker not in other.evicted:
                        there.setdefault(placement.node, []).append((other, placement))
        for node in self._barred(claim) or ():
            there.pop(node, None)
        costs = [(self._cost(claim, node, there[node], spare)[0], node) for node in there]
        heapify(costs)
        found: list[str] = []
        while costs and len(found) < count:
            expected, node = heappop(costs)
            cost, victims = self._cost(claim, node, there[node], spare)
            if cost > expected:
                heappush(costs, (cost, node))
            elif cost < _TOO_DEAR:
                for victim, placement in victims:
                    self._evict(victim, [placement], taken)
                    spare[victim.name] -= 1
                fits = min(count - len(found), self.capacity.fits_at(node, claim.need))
                self.capacity.promise_at(node, claim.need, fits)
                found += [node] * fits
                heappush(costs, (cost, node))
        return found

    def _cost(
        self,
        claim: Claim,
        node: str,
        there: list[tuple[Claim, Placement]],
        spare: dict[str, int],
    ) -> tuple[tuple[float, int], list[tuple[Claim, Placement]]]:
        """What one more of the claim's workers costs here: the highest rank that has to give, and
        how many; with those who would."""
        free = plus(self.capacity.free[node], self.capacity.soon.get(node, EMPTY))
        victims: list[tuple[Claim, Placement]] = []
        used: dict[str, int] = {}
        if slots(claim.need, free):
            return (-inf, 0), victims
        for victim, placement in there:
            if placement.worker in victim.evicted:
                continue
            if used.get(victim.name, 0) >= spare[victim.name]:
                continue
            used[victim.name] = used.get(victim.name, 0) + 1
            victims.append((victim, placement))
            free = plus(free, victim.need)
            if slots(claim.need, free):
                return (victim.rank, len(victims)), victims
        return _TOO_DEAR, []

    def _spare(self, taken: list[_Taken]) -> None:
        """Let those stay whose room turned out not to be needed; the dearest first."""
        stopped: set[str] = set()
        for item in reversed(list(taken)):
            victim, placements = item
            if victim.name in stopped:
                continue
            mark = self.capacity.mark()
            for placement in placements:
                self.capacity.stay(placement.node, victim.need)
            if all(self._whole(placement.node) for placement in placements):
                for placement in placements:
                    del victim.evicted[placement.worker]
                self._use(victim, len(placements))
                taken.remove(item)
                continue
            self.capacity.back_to(mark)
            if victim.staying == 0:
                stopped.add(victim.name)

    def _whole(self, node: str) -> bool:
        return within(EMPTY, plus(self.capacity.free[node], self.capacity.soon[node]))

    def _explain(self, victim: Claim, placements: list[Placement], claim: Claim) -> None:
        whole = victim.staying == 0
        why = sentences.gives_way(victim, claim, whole=whole)
        for placement in placements:
            victim.evicted[placement.worker] = why
            self.leaving.setdefault(placement.node, {})[victim.name] = None
        if whole:
            victim.stopped = why

    def _evict(self, victim: Claim, placements: list[Placement], taken: list[_Taken]) -> None:
        for placement in placements:
            victim.evicted[placement.worker] = ""
            self.capacity.leave(placement.node, victim.need)
        self._use(victim, -len(placements))
        taken.append((victim, placements))

    def _shrink(self, claim: Claim, count: int, why: str) -> None:
        leavers = _dispensable(claim)[:count]
        self._evict(claim, leavers, [])
        for placement in leavers:
            claim.evicted[placement.worker] = why
            self.leaving.setdefault(placement.node, {})[claim.name] = None

    def _clear_drained_machines(self) -> None:
        """A job on a drained machine that can have no replacement is stopped whole."""
        for claim in self.world.claims:
            if not claim.moving or claim.stopped:
                continue
            if claim.staying + len(claim.adds) + len(claim.promised) >= claim.least:
                continue
            claim.stopped = sentences.no_replacement(claim)
            self._shrink(claim, claim.staying, claim.stopped)

    # --- the limits of queues -------------------------------------------------------------------

    def _use(self, claim: Claim, count: int) -> None:
        """Count workers against the limit of their queue."""
        left = self._left_in.get(claim.queue)
        if left is not None:
            self._left_in[claim.queue] = minus(left, times(claim.need, count))

    def _limit_slots(self, claim: Claim, *, with_excess: bool = False) -> int:
        """How many more workers its queue's limit allows (after others gave up their excess)."""
        left = self._left_in.get(claim.queue)
        if left is None:
            return claim.most
        if with_excess:
            for mate in self.world.claims:
                if mate.queue == claim.queue and mate is not claim:
                    left = plus(left, times(mate.need, mate.excess))
        return slots(claim.need, left)

    def _keep_limits(self) -> None:
        """Drain what jobs have above their share until each queue is within its limit."""
        for queue in self._left_in:
            mates = [other for other in reversed(self.world.claims) if other.queue == queue]
            for stop in (False, True):
                for mate in mates:
                    self._shed(mate, stop=stop)

    def _shed(self, mate: Claim, *, stop: bool) -> None:
        while not within(EMPTY, self._left_in[mate.queue]) and mate.excess:
            whole = stop and not mate.target and mate.staying <= mate.least
            if mate.staying <= mate.least and not whole:
                return
            why = sentences.over_limit(mate)
            self._shrink(mate, mate.staying if whole else 1, why)
            if whole:
                mate.stopped = why


def _counts(claim: Claim) -> Counter[str]:
    """How many of its workers stay or start on each machine."""
    stays = (one.node for one in claim.held if one.worker not in claim.evicted)
    return Counter((*stays, *claim.adds))


def _dispensable(claim: Claim) -> list[Placement]:
    """Its workers, those first that it can do without best: of a training those on machines where
    it has fewest, of a service one by one from where it has most; the youngest first."""
    stays = [placement for placement in claim.held if placement.worker not in claim.evicted]
    stays.sort(key=lambda placement: -placement.worker)
    counts = Counter(placement.node for placement in stays)
    if not claim.job.spec.serves:
        return sorted(stays, key=lambda placement: counts[placement.node])
    left: list[tuple[int, Placement]] = []
    for placement in stays:
        left.append((counts[placement.node], placement))
        counts[placement.node] -= 1
    return [placement for _, placement in sorted(left, key=lambda one: -one[0])]
