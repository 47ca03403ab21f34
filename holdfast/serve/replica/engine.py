"""The versions that a replica can answer with, and what was counted of them.

Everything here happens in the replica's event loop. The engine knows neither HTTP nor the
coordination plane: others tell it the service, the stable version, and what is loaded.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from holdfast.models.records import Version
from holdfast.serve.cache.results import ResultCache
from holdfast.serve.cache.updates import ModelUpdate
from holdfast.serve.guard import Guard
from holdfast.serve.prediction_topic import PredictionTopic
from holdfast.serve.predictions import PredictionLog
from holdfast.serve.protocol.marks import DIRECT
from holdfast.serve.protocol.rest import Codec
from holdfast.serve.protocol.tensors import InferAnswer, InferRequest, key_of
from holdfast.serve.records import (
    LATENCY_BOUNDS_MS,
    Counts,
    PredictionCounts,
    ReplicaStats,
    ServiceSpec,
)
from holdfast.serve.replica.batching import Batcher, BatchPace, Outputs, Predict
from holdfast.serve.replica.output_watch import OutputWatch, RolloutWatch
from holdfast.system import logs
from holdfast.system.tasks import WAITED, Tasks
from holdfast.wire.errors import Cancelled, HoldfastError, ModelFailed, NotHere, TimedOut
from holdfast.wire.limits import STUCK_END_S, STUCK_SLACK_S

# A version that is not held any more still answers those who chose it before: for the first at
# least, and for as long as somebody whose body is still coming has chosen it, up to the second.
CHOSEN_GRACE_S: Final = 1.0
UNLOAD_WAIT_S: Final = 60.0
UNLOAD_LOOK_S: Final = 0.05

log = logs.get(__name__)

Done = Callable[[InferAnswer | BaseException], None]
T = TypeVar("T")

_BOUNDS_S: Final = tuple(bound / 1000 for bound in LATENCY_BOUNDS_MS)


class HeldVersion:
    """A version that is loaded, and what was counted of it. `chosen`: so many requests are on
    their way to it; it is not unloaded before them."""

    __slots__ = ("batcher", "buckets", "chosen", "codec", "errors", "record", "requests", "took_s")

    def __init__(self, record: Version, batcher: Batcher) -> None:
        self.record = record
        self.batcher = batcher
        self.codec = Codec(record.signature, record.model)
        self.chosen = 0
        self.requests = 0
        self.errors = 0
        self.took_s = 0.0  # all of them together
        self.buckets = [0] * (len(_BOUNDS_S) + 1)

    def counted(self, took_s: float, *, failed: bool = False) -> None:
        self.requests += 1
        self.errors += failed
        self.took_s += took_s
        self.buckets[bisect_left(_BOUNDS_S, took_s)] += 1

    def counts(self) -> Counts:
        return Counts(self.requests, self.errors, tuple(self.buckets))


class Engine:
    """Answers requests. `stable` may change at any time, the service by `configure`."""

    def __init__(
        self,
        service: ServiceSpec,
        *,
        worker: int = 0,
        region: str = "",
        logs: Path | None = None,
        topic: Callable[[ServiceSpec], PredictionTopic] | None = None,
    ) -> None:
        """`logs`: where predictions are written down, `topic`: what tells them to a topic, if the
        service wants that."""
        self.service = service
        self.guard = Guard()
        self.worker = worker
        self.region = region
        self.stable: int | None = None  # the version of requests that name none
        self.draining = False
        self.last_s = time.monotonic()  # when the last request came
        self._held: dict[int, HeldVersion] = {}
        self._logs = logs
        self._results = ResultCache()
        self._predictions: PredictionLog | None = None
        self._open_topic = topic
        self._topic: PredictionTopic | None = None
        self._dropped_before = 0  # predictions, by logs that are closed
        self.traces = False  # whether somebody writes down what gateways call requests
        self.routed = b""  # then also the header whose value chooses the replica; "": none
        self._leaving: dict[
            int, HeldVersion
        ] = {}  # being unloaded: for those who chose them before
        self._refused_before = 0  # by versions that are gone
        self._elsewhere = RetryBudget()
        self._rollout: RolloutWatch | None = None  # while a version is rolled out
        self._watched_leaving: dict[int, OutputWatch] = {}
        self._looks = False  # whether outputs are looked at, of any version
        self._asking = Tasks(WAITED)
        self._logs_ending = Tasks()

    def configure(self, service: ServiceSpec) -> None:
        """Take what the service's users have changed."""
        self.service = service
        self.guard.configure(service.secret)
        for held in self._held.values():
            held.batcher.limits = service.limits
        self._results.configure(service)
        self._configure_predictions(service)

    def follow(self, stable: int | None, next_: int | None, leaving: Collection[int] = ()) -> None:
        """Which version is stable, and which one is being rolled out; None: none. `leaving`: those
        that gateways may still send to although nobody wants them. One that was taken back is such
        a one: the replica knows that before gateways do, and has requests for it under way."""
        self._follow(stable, next_)
        self._watched_leaving = {number: OutputWatch(self.service.guards) for number in leaving}
        self._looks = self._rollout is not None or bool(leaving)

    def _follow(self, stable: int | None, next_: int | None) -> None:
        self.stable = stable
        if stable is None or next_ is None or stable == next_:
            self._rollout = None
            return
        guards, before = self.service.guards, self._rollout
        if before is None or before.key != (stable, next_, guards):
            self._rollout = RolloutWatch(stable, next_, guards, self._held.get)

    def _configure_predictions(self, service: ServiceSpec) -> None:
        if not service.log_predictions:
            self._end_log()
        elif self._predictions is None and self._logs is not None:
            self._predictions = PredictionLog(self._logs)
        if self._predictions is not None:
            self._predictions.redact = service.predictions.redact
        if not service.predictions.topic:
            self._end_topic()
        elif self._topic is not None:
            self._topic.configure(service.predictions)
        elif self._open_topic is not None:
            self._topic = self._open_topic(service)
        self.traces = self._predictions is not None or self._topic is not None
        self.routed = service.route_by.lower().encode() if self._topic is not None else b""

    async def close(self) -> None:
        """Write down what waits to be; versions are removed one by one."""
        await self._results.close()
        self._end_log()
        self._end_topic()
        await self._logs_ending.wait()

    def _end_log(self) -> None:
        log, self._predictions = self._predictions, None
        if log is not None:  # a slow disk must not stop the loop
            self._dropped_before += log.dropped
            self._logs_ending.start(asyncio.to_thread(log.close), "predictions-end")

    def _end_topic(self) -> None:
        topic, self._topic = self._topic, None
        if topic is not None:
            self._dropped_before += topic.counts().dropped
            self._logs_ending.start(asyncio.to_thread(topic.close), "predictions-topic-end")

    # --- requests --------------------------------------------------------------------------------

    async def infer(self, request: InferRequest, chosen: HeldVersion | None = None) -> InferAnswer:
        """`NotHere`: not loaded here. `Full`, `TimedOut`, `ModelFailed`: what the names say.
        `chosen`: what `held` gave before.

        A new version that fails on a request that a gateway gave it costs nobody an answer: the
        stable one gives it, and says so. The failure counts against the new one.
        """
        held = self.held(request.version) if chosen is None else chosen
        try:
            return await self._infer(request, held)
        except ModelFailed:
            stable = self._instead_of(held, request)
            if stable is None:
                raise
            return await self._infer(request, stable)

    async def _infer(self, request: InferRequest, held: HeldVersion) -> InferAnswer:
        self.last_s = began_s = time.monotonic()
        cached = False
        try:
            if self._results.wanted:
                outputs, cached = await self._results.through(
                    key_of(held.record, request),
                    lambda: held.batcher.compute(request.inputs),
                    held.record.number,
                )
            elif held.batcher.pace is BatchPace.INSTANT:
                outputs = held.batcher.at_once(request.inputs)
            else:
                outputs = await held.batcher.compute(request.inputs)
        except (ModelFailed, TimedOut):
            held.counted(time.monotonic() - began_s, failed=True)
            raise
        stable = self._instead_of_unfit(held, request, outputs) if self._looks else None
        if stable is not None:
            held.counted(time.monotonic() - began_s)
            return await self._infer(request, stable)
        return self._answer(request, held, outputs, began_s, cached=cached)

    def _answer(
        self,
        request: InferRequest,
        held: HeldVersion,
        outputs: Outputs,
        began_s: float,
        *,
        cached: bool,
    ) -> InferAnswer:
        took_s = time.monotonic() - began_s
        held.counted(took_s)
        if self._rollout is not None:
            self._rollout.offer(held.record.number, request.inputs, outputs)
        if request.outputs:
            outputs = {name: outputs[name] for name in request.outputs}
        record = held.record
        answer = InferAnswer(record.model, record.number, request.id, outputs, cached)
        if self._predictions is not None:
            self._predictions.note(request, answer, took_s * 1000)
        if self._topic is not None:
            self._topic.note(request, answer, took_s * 1000)
        return answer

    def ask(
        self, request: InferRequest, held: HeldVersion, done: Done
    ) -> asyncio.Future[Any] | None:
        """`infer` without a task where none is needed, for a caller that has no time for one:
        `done` gets the answer or what `infer` would raise, now or later. What is given back can be
        cancelled. `Full` and `NotHere` are raised."""
        batcher = held.batcher
        if self._results.wanted:
            return self._ask_results(request, held, done)
        self.last_s = began_s = time.monotonic()
        if batcher.pace is not BatchPace.INSTANT:
            future = batcher.begin(request.inputs)
            future.add_done_callback(partial(self._computed, request, held, began_s, done))
            return future
        try:
            outputs = batcher.at_once(request.inputs)
        except ModelFailed as error:
            self._failed(request, held, began_s, done, error)
        else:
            self._give(request, held, outputs, began_s, done)
        return None

    def _give(
        self,
        request: InferRequest,
        held: HeldVersion,
        outputs: Outputs,
        began_s: float,
        done: Done,
        *,
        cached: bool = False,
    ) -> None:
        """What was computed, or in a rollout what the stable version has instead of it."""
        stable = self._instead_of_unfit(held, request, outputs) if self._looks else None
        if stable is None:
            done(self._answer(request, held, outputs, began_s, cached=cached))
        else:
            held.counted(time.monotonic() - began_s)
            self._ask_instead(request, stable, done)

    def _ask_results(
        self, request: InferRequest, held: HeldVersion, done: Done
    ) -> asyncio.Future[Any] | None:
        began_s = time.monotonic()
        outputs = self._results.at_hand(key_of(held.record, request))
        if outputs is not None:
            self.last_s = began_s
            self._give(request, held, outputs, began_s, done, cached=True)
            return None
        task = self._asking.start(self.infer(request, held), "infer")
        task.add_done_callback(partial(self._inferred, done))
        return task

    def _inferred(self, done: Done, task: asyncio.Future[InferAnswer]) -> None:
        found = _outcome(task)
        done(found)

    def _computed(
        self,
        request: InferRequest,
        held: HeldVersion,
        began_s: float,
        done: Done,
        future: asyncio.Future[Outputs],
    ) -> None:
        found = _outcome(future)
        if isinstance(found, ModelFailed | TimedOut):
            self._failed(request, held, began_s, done, found)
        elif isinstance(found, BaseException):
            done(found)
        else:
            self._give(request, held, found, began_s, done)

    def _failed(
        self,
        request: InferRequest,
        held: HeldVersion,
        began_s: float,
        done: Done,
        error: HoldfastError,
    ) -> None:
        held.counted(time.monotonic() - began_s, failed=True)
        stable = self._instead_of(held, request) if isinstance(error, ModelFailed) else None
        if stable is None:
            done(error)
        else:
            self._ask_instead(request, stable, done)

    def _ask_instead(self, request: InferRequest, stable: HeldVersion, done: Done) -> None:
        try:
            self.ask(request, stable, done)
        except HoldfastError as another:
            done(another)

    def _instead_of(self, held: HeldVersion, request: InferRequest) -> HeldVersion | None:
        """The stable version, where it may answer for one that has failed: a gateway has chosen
        that one, not the client, and the two take and give the same."""
        stable = self._held.get(self.stable) if self.stable is not None else None
        if request.variant in ("", DIRECT) or stable is None or stable is held:
            return None
        return stable if stable.record.signature == held.record.signature else None

    def _instead_of_unfit(
        self, held: HeldVersion, request: InferRequest, outputs: Outputs
    ) -> HeldVersion | None:
        """The stable version, where it may answer instead of one whose outputs break a guard."""
        number = held.record.number
        leaving = self._watched_leaving.get(number)
        if leaving is not None:
            broken = leaving.breaks(outputs)
        else:
            broken = self._rollout is not None and self._rollout.breaks(number, outputs)
        return self._instead_of(held, request) if broken else None

    def held(self, version: int | None) -> HeldVersion:
        """A version that is loaded here (None: the stable one); `NotHere`."""
        number = self.stable if version is None else version
        if number is None:
            raise self._not_here(number)
        found = self._held.get(number) or self._leaving.get(number)
        if found is None:
            raise self._not_here(number)
        return found

    def signature(self, version: int | None) -> Version:
        """The record of a version that is loaded here (None: the stable one); `NotHere`."""
        return self.held(version).record

    def knows(self, name: str) -> bool:
        """Whether requests may call the model so: by the model's name or the service's."""
        return name in (self.service.model, self.service.name)

    def check_capacity(self, held: HeldVersion) -> None:
        """`Full`, if a request for this version would be refused; what is remembered is not."""
        if not self._results.wanted:
            held.batcher.check_capacity()

    def try_elsewhere(self, attempt: str | None) -> bool:
        """Whether a gateway may try another replica with a request that is refused here because
        this one is full; `attempt`: how often it has tried, as it says."""
        answered = sum(held.requests for held in self._held.values())
        return self._elsewhere.spend(answered, attempt)

    # --- what is loaded --------------------------------------------------------------------------

    def install(self, record: Version, predict: Predict, *, batches: bool, pace: BatchPace) -> None:
        """From now on this version answers."""
        name = f"{record.model}@{record.number}"
        limits = self.service.limits
        service = self.service.name
        batcher = Batcher(name, predict, limits, batches=batches, pace=pace, service=service)
        self._held[record.number] = HeldVersion(record, batcher)

    async def remove(self, number: int) -> bool:
        """Choose this version for nobody any more, and wait for those who have; whether all of them
        were answered."""
        held = self._held.pop(number, None)
        if held is None:
            return True
        self._leaving[number] = held
        try:
            until_s = time.monotonic() + UNLOAD_WAIT_S
            await asyncio.sleep(CHOSEN_GRACE_S)
            while held.chosen and time.monotonic() < until_s:  # noqa: ASYNC110  # counted cheaply
                await asyncio.sleep(UNLOAD_LOOK_S)
            return await held.batcher.close(UNLOAD_WAIT_S)
        finally:
            if self._leaving.get(number) is held:
                del self._leaving[number]
            if number not in self._held:
                self._results.drop(number)
            self._refused_before += held.batcher.refused

    def model_updated(self, update: ModelUpdate) -> None:
        """Drop answers that nobody will ask for: of versions that are retired, or that an alias
        does not name any more and that are not loaded here."""
        for version in update.unasked_for(self._held):
            dropped = self._results.drop(version)
            if dropped:
                log.info("answers are dropped", version=version, count=dropped, of=update.change)

    @property
    def versions(self) -> Mapping[int, HeldVersion]:
        return self._held

    # --- what is true of it ----------------------------------------------------------------------

    def ready(self, version: int | None = None) -> bool:
        """Whether that version (None: the stable one) is loaded and its computing goes on; for
        None also: not draining."""
        number = self.stable if version is None else version
        held = self._held.get(number) if number is not None else None
        if held is None or (version is None and self.draining):
            return False
        return held.batcher.busy_s(time.monotonic()) < self._stuck_s

    def live(self) -> bool:
        """Whether the process does its work; a computation that is stuck beyond hope is not."""
        return not self.hopeless()

    def hopeless(self) -> str:
        """The version whose computation is stuck for so long that only the end of the process ends
        it; empty: none. May be asked by any thread."""
        now_s = time.monotonic()
        for batcher in self._batchers():
            if batcher.busy_s(now_s) > self._stuck_s + STUCK_END_S:
                return batcher.name
        return ""

    @property
    def unanswered(self) -> int:
        """Requests that were taken and not answered yet."""
        return sum(each.waiting + each.running for each in self._batchers())

    def stats(self) -> ReplicaStats:
        batchers = self._batchers()
        return ReplicaStats(
            worker=self.worker,
            waiting=sum(each.waiting for each in batchers),
            running=sum(each.running for each in batchers),
            refused=self._refused_before + sum(each.refused for each in batchers),
            versions={number: held.counts() for number, held in sorted(self._held.items())},
            cache=self._results.counts(),
            watched=self._rollout.counts() if self._rollout is not None else {},
            predictions=self.predictions(),
        )

    def predictions(self) -> PredictionCounts:
        """What became of the predictions that are to be told, or written down."""
        told = self._topic.counts() if self._topic is not None else PredictionCounts()
        written = self._predictions.dropped if self._predictions is not None else 0
        return replace(told, dropped=told.dropped + written + self._dropped_before)

    def _batchers(self) -> list[Batcher]:
        """Of all that still compute."""
        return [held.batcher for held in [*self._held.values(), *self._leaving.values()]]

    @property
    def _stuck_s(self) -> float:
        return self.service.limits.timeout_s + STUCK_SLACK_S

    def _not_here(self, number: int | None) -> NotHere:
        if number is None:
            return NotHere(
                f"{self.service.name} serves no version yet",
                why="its first version is not loaded",
                fix=f"holdfast why {self.service.name}",
            )
        here = ", ".join(map(str, sorted(self._held))) or "none"
        return NotHere(
            f"version {number} of {self.service.model} is not loaded here",
            why=f"loaded are: {here}",
            fix="try again, or ask for a version that is served",
        )


def _outcome(future: asyncio.Future[T]) -> T | BaseException:
    """What has come of it."""
    if future.cancelled():
        return Cancelled("the client has hung up")
    return future.exception() or future.result()


# --- elsewhere ------------------------------------------------------------------------------------
# How often a full replica lets a gateway try another one. Pure.
#
# Where one replica is full another may have room; where all are, each further try is work for
# nothing that keeps them full. So such tries are bought by answers: a tenth of them. Under ten
# times the load that replicas can carry that is a hundredth of the requests.


# A full replica lets a gateway try another one, but only for so many requests as are this share of
# those that it has answered, and for so many at once after a quiet time: where all are full, each
# such try is work for nothing.
ELSEWHERE_SHARE: Final = 0.1
ELSEWHERE_MAX: Final = 10.0


_FIRST = "1"


class RetryBudget:
    """Of one replica."""

    def __init__(self, share: float = ELSEWHERE_SHARE, most: float = ELSEWHERE_MAX) -> None:
        self._share, self._most = share, most
        self._left = most
        self._answered = 0

    def spend(self, answered: int, attempt: str | None) -> bool:
        """Whether this request may be tried elsewhere: it was not before (`attempt` is as the
        gateway counts), and enough were answered (`answered`: since the start)."""
        earned = self._share * max(0, answered - self._answered)
        self._answered = answered
        self._left = min(self._most, self._left + earned)
        if attempt not in (None, _FIRST) or self._left < 1:
            return False
        self._left -= 1
        return True
