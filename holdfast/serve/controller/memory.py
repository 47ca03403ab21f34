"""What a controller has seen of one service over time. No I/O: told what was seen, and when.

It goes with the controller. Whoever leads next begins with nothing, and so waits longer; nothing is
decided from what is missing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

from holdfast.control.decide.facts import Failure
from holdfast.serve.records import (
    Counts,
    Load,
    OutputStats,
    Replica,
    ReplicaStats,
    RolloutPlan,
    Variant,
)
from holdfast.serve.rollout.facts import (
    LoadSample,
    ReplicaDeath,
    ServiceObservation,
    Window,
    applied_by_all,
)
from holdfast.serve.rollout.verdict import quantile_ms, since, total, total_watched

# Deaths that a controller remembers for each service.
DEATHS_KEPT: Final = 64
# Replicas whose word on a version's outputs a controller keeps, also of those that have died: twice
# as many as a service has.
WATCHED_KEPT: Final = 512
# Looks of a window that are kept apart; of more, each two neighbours become one.
LOOKS_KEPT: Final = 32
# Samples kept for autoscaling: a little more than `AUTOSCALE_DOWN_S` of them.
SAMPLES_KEPT: Final = 512


class ServiceHistory:
    """Deaths, counts and load of one service. For one thread."""

    def __init__(self) -> None:
        self._replicas: Mapping[int, Replica] = {}
        self._before: dict[int, Mapping[int, Load]] = {}  # worker -> what it said before it went
        self._deaths: deque[ReplicaDeath] = deque(maxlen=DEATHS_KEPT)
        self._failed: set[int] = set()
        self._stats: dict[int, ReplicaStats] = {}
        self._variants: tuple[Variant, ...] = ()
        self._applied = False
        self._window: Window | None = None
        self._samples: deque[LoadSample] = deque(maxlen=SAMPLES_KEPT)
        # Of the present rollout: from this plan on, what each replica has seen of outputs.
        self._rollout: tuple[object, ...] = ()
        self._rollout_from = 0
        self._watched: dict[int, Mapping[int, OutputStats]] = {}
        self._stage: tuple[object, ...] = ()
        self._since_s = 0.0  # it has seen this stage since then
        self._now_s = 0.0  # when it looked last

    @property
    def deaths(self) -> tuple[ReplicaDeath, ...]:
        return tuple(self._deaths)

    @property
    def window(self) -> Window | None:
        """What was counted since the variants are as they are."""
        return self._window

    @property
    def watched(self) -> dict[int, OutputStats]:
        """What all replicas have seen of the outputs of each version in this rollout, also those
        that are gone."""
        versions = {version for seen in self._watched.values() for version in seen}
        return {
            version: total_watched(
                seen[version] for seen in self._watched.values() if version in seen
            )
            for version in versions
        }

    @property
    def samples(self) -> tuple[LoadSample, ...]:
        return tuple(self._samples)

    def look(
        self, service: str, seen: ServiceObservation, failures: Iterable[Failure], now_s: float
    ) -> ServiceObservation:
        """What is seen now, with what is remembered."""
        self._see_time(now_s)
        plan = seen.plan
        if plan is not None and self._stage != (plan.stage, plan.next, plan.since_s):
            self._stage = (plan.stage, plan.next, plan.since_s)
            self._since_s = now_s
        applied = plan is not None and applied_by_all(plan, seen.gateways, service)
        self.see_plan(plan, applied=applied)
        self.see_replicas(seen.replicas, now_s)
        self.see_failures(failures, now_s)
        return replace(
            seen,
            window=self.window,
            samples=self.samples,
            watched=self.watched,
            deaths=self.deaths,
            since_s=self._since_s if plan is not None else None,
        )

    def _see_time(self, now_s: float) -> None:
        """If the clock was set back, what it had dated is dated anew, as far behind as it was."""
        back_s = max(0.0, self._now_s - now_s)
        self._now_s = now_s
        if not back_s:
            return
        self._since_s -= back_s
        for at, death in enumerate(self._deaths):
            self._deaths[at] = replace(death, at_s=death.at_s - back_s)
        for at, sample in enumerate(self._samples):
            self._samples[at] = replace(sample, at_s=sample.at_s - back_s)
        if self._window is not None:
            since_s, until_s = self._window.since_s - back_s, self._window.until_s - back_s
            self._window = replace(self._window, since_s=since_s, until_s=until_s)

    # --- what is seen -----------------------------------------------------------------------

    def see_plan(self, plan: RolloutPlan | None, *, applied: bool) -> None:
        """Other variants: what was counted before says nothing about them. `applied`: every gateway
        sends by them; before that nothing is counted."""
        variants = plan.variants if plan is not None else ()
        if variants != self._variants or not applied:
            self._variants = variants
            self._window = None
            self._stats.clear()
        self._applied = applied
        rollout = (plan.stable, plan.next, plan.version_revision) if plan is not None else ()
        if rollout != self._rollout:
            self._rollout = rollout
            self._rollout_from = plan.number if plan is not None else 0
            self._watched.clear()

    def see_replicas(self, replicas: Mapping[int, Replica], now_s: float) -> None:
        """Who is there now. One that has gone without a word has died."""
        for worker, replica in self._replicas.items():
            if worker in replicas:
                continue
            self._stats.pop(worker, None)
            versions = {version: held.state for version, held in replica.versions.items()}
            if replica.draining or worker in self._failed:
                continue
            self._before[worker] = versions
            self._deaths.append(ReplicaDeath(worker, now_s, versions=versions))
        while len(self._before) > DEATHS_KEPT:
            self._before.pop(next(iter(self._before)))
        self._replicas = dict(replicas)

    def see_failures(self, failures: Iterable[Failure], now_s: float) -> None:
        """Which replicas, by the control plane's word, ended by their own fault.

        When is told by another machine's clock, which may be wrong, and is not believed, not even
        by a controller that has just begun: what is new to it has happened by now, by the clock
        that it dates plans with. What happened long ago speaks against nothing, since nobody knows
        any more what that replica held.
        """
        told = list(failures)
        for failure in told:
            if failure.worker in self._failed:
                continue
            self._failed.add(failure.worker)
            there = self._replicas.get(failure.worker)
            versions = (
                {version: held.state for version, held in there.versions.items()}
                if there is not None
                else self._before.get(failure.worker, {})
            )
            others = [death for death in self._deaths if death.worker != failure.worker]
            gone = [death for death in self._deaths if death.worker == failure.worker]
            at_s = gone[0].at_s if gone else now_s
            death = ReplicaDeath(failure.worker, at_s, True, failure.reason, versions)
            self._deaths = deque([*others, death], maxlen=DEATHS_KEPT)
        self._failed &= {failure.worker for failure in told}

    def see_stats(
        self,
        answers: Mapping[int, ReplicaStats],
        asked: Collection[int],
        variants: tuple[Variant, ...],
        now_s: float,
    ) -> None:
        """What replicas have counted up to now, of those that were asked while the variants were
        `variants`. The first answer of each is where its counting begins."""
        if variants != self._variants:
            return  # asked before the variants were changed: nobody knows which of them it tells of
        fresh: dict[int, list[Counts]] = {}
        refused = 0
        for worker, stats in answers.items():
            before = self._stats.get(worker)
            if before is None:
                continue
            refused += max(0, stats.refused - before.refused)
            for version, counts in stats.versions.items():
                grown = since(counts, before.versions.get(version))
                fresh.setdefault(version, []).append(grown)
        self._stats.update(answers)
        for worker, stats in answers.items():
            there = self._replicas.get(worker)
            # One that has not followed yet tells of an earlier rollout.
            if there is not None and there.plan >= self._rollout_from:
                self._watched[worker] = stats.watched
        while len(self._watched) > WATCHED_KEPT:
            self._watched.pop(next(iter(self._watched)))
        counted = {version: total(each) for version, each in fresh.items()}
        self._sample(answers, refused, counted, now_s)
        self._count(counted, 2 * len(answers) >= len(asked) and bool(answers), now_s)

    def _sample(
        self,
        answers: Mapping[int, ReplicaStats],
        refused: int,
        counted: Mapping[int, Counts],
        now_s: float,
    ) -> None:
        if not answers:
            return
        sample = LoadSample(
            now_s,
            sum(stats.waiting for stats in answers.values()),
            sum(stats.running for stats in answers.values()),
            refused,
            len(answers),
            quantile_ms(total(counted.values()).buckets, 0.99),
        )
        self._samples.append(sample)

    def _count(self, counted: Mapping[int, Counts], enough: bool, now_s: float) -> None:
        window = self._window
        if window is None:
            if enough and self._applied:
                self._window = Window(self._variants, now_s, now_s)
            return
        counts = _sum(window.counts, counted)
        looks = (*window.looks, counted) if counted else window.looks
        if len(looks) > LOOKS_KEPT:
            looks = tuple(_sum(*pair) for pair in zip(looks[::2], (*looks[1::2], {}), strict=False))
        until_s = now_s if enough else window.until_s
        self._window = replace(window, counts=counts, looks=looks, until_s=until_s)


def _sum(one: Mapping[int, Counts], other: Mapping[int, Counts]) -> dict[int, Counts]:
    nothing = Counts()
    return {
        version: total([one.get(version, nothing), other.get(version, nothing)])
        for version in {*one, *other}
    }
