"""Requests become batches while the model is busy; a lone request never waits.

A batcher computes for one version, in one of three ways (`BatchPace`):

- what costs less than putting requests together is computed at once, in the event loop;
- what is short is computed in the event loop at the end of the turn in which it came: all requests
  of that turn go together;
- anything else in one thread: whatever has come while it was busy is its next batch.

A version whose computations turn out to be long moves into a thread, and comes back when they have
been short for a while (`judging`).

More is refused at once than can be computed in time: as many requests wait as are computed within
the service's patience, by what the last computations cost, and never more than its queue holds.

A batch that fails is computed again request by request, so that one bad request does not fail its
neighbours. A request that was cancelled or has waited too long is not computed.
"""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from holdfast.serve import settings
from holdfast.serve.records import Limits
from holdfast.system import logs
from holdfast.system.tasks import in_loop, start_thread
from holdfast.wire.errors import Full, HoldfastError, ModelFailed, NotHere, TimedOut
from holdfast.wire.limits import INLINE_LATE_S, INLINE_S, LOAD_REASON_CHARACTERS_MAX

# --- switching ------------------------------------------------------------------------------------
# How often Python changes threads: often only while that helps somebody.
#
# A thread that computes or loads in Python's own code keeps the event loop waiting until Python
# changes threads. So it changes often while there is one. Else it need not: threads that only wait
# for something short (gRPC's) would interrupt small requests for nothing.


# Python changes threads so often while one computes: a request waits no longer for a loading one.
SWITCH_INTERVAL_S: Final = 0.0005


_lock: Final = threading.Lock()
_before: list[float] = []  # one for each that is inside: what the first of them has found


@contextmanager
def changing_often() -> Iterator[None]:
    """While a thread does something in this process that is not the event loop's."""
    with _lock:
        _before.append(_before[0] if _before else sys.getswitchinterval())
        sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        with _lock:
            before = _before.pop()
            if not _before:
                sys.setswitchinterval(before)


# --- joining --------------------------------------------------------------------------------------
# Requests as rows of one batch, and their answers as rows of its outputs. Pure.
#
# Only requests whose inputs have the same names, types and shapes but for the first dimension go
# together, and only where the signature says that rows do not depend on each other.


Array = NDArray[Any]
Inputs = Mapping[str, Array]


def shape_of(inputs: Inputs) -> tuple[Hashable, int]:
    """What inputs must have in common to be one batch, and how many rows these have. None instead
    of the first: they go with nobody."""
    rows = -1
    key: list[Hashable] = []
    for name, array in inputs.items():
        shape = array.shape
        if not shape or (rows >= 0 and shape[0] != rows):
            return None, 1
        rows = shape[0]
        key.append((name, array.dtype.char, shape[1:]))
    if rows < 1:
        return None, 1
    return tuple(key), rows


def joined(parts: Sequence[Inputs]) -> Inputs:
    """One batch of all their rows, in their order. All have the same key."""
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([each[name] for each in parts]) for name in parts[0]}


def split(outputs: Mapping[str, Array], rows: Sequence[int]) -> list[dict[str, Array]]:
    """The outputs of each request; `ModelFailed` if they do not have the batch's rows."""
    total = sum(rows)
    for name, array in outputs.items():
        if not array.ndim or array.shape[0] != total:
            raise ModelFailed(
                f"output {name!r} has the shape {list(array.shape)} for a batch of {total} rows",
                why="the version says that its outputs have a row for each row of its inputs",
                fix="publish it with a signature that does not batch, or mend the model",
            )
    found = []
    start = 0
    for count in rows:
        end = start + count
        found.append({name: array[start:end] for name, array in outputs.items()})
        start = end
    return found


def repeated(inputs: Inputs, rows: int) -> Inputs:
    """The rows of an example again and again until there are `rows` of them."""
    return {name: np.resize(array, (rows, *array.shape[1:])) for name, array in inputs.items()}


# --- judging --------------------------------------------------------------------------------------
# Whether a version computes in the event loop or in a thread. Pure.
#
# What is short belongs into the loop, where it delays everybody for a moment; what turns out to be
# long belongs into a thread. A busy machine makes short ones look long: so a version comes back
# when its computations have been short for a while, after twice as many of them each time.


# One that was thought short and took this long: a page fault or a busy machine. So many of them
# among so many, and the version computes in a thread from then on.
INLINE_LATE_MAX: Final = 50
INLINE_WINDOW: Final = 1_000
# One that takes this long moves the version into a thread at once: everybody waited for it.
INLINE_STALL_S: Final = 0.1
# It comes back after `INLINE_WINDOW` computations with no more late ones than that, the next time
# after twice as many, up to this: a version that is slow now and then costs ever less.
INLINE_WINDOW_MAX: Final = 1_000_000


class Judge:
    """Of one version."""

    def __init__(self) -> None:
        self._late = self._computed = 0
        self._window = INLINE_WINDOW  # in the thread, before it may come back

    def too_long(self, took_s: float) -> bool:
        """After a computation in the loop: whether the next one belongs into a thread."""
        self._computed += 1
        self._late += took_s > INLINE_LATE_S
        moves = took_s >= INLINE_STALL_S or self._late >= INLINE_LATE_MAX
        if moves or self._computed >= INLINE_WINDOW:
            self._late = self._computed = 0
        return moves

    def short_again(self, own_s: float, took_s: float) -> bool:
        """After a computation in the thread: whether the next one may be done in the loop. By the
        rule for new versions: of the thread's own time, and by the clock."""
        self._computed += 1
        self._late += own_s >= INLINE_S or took_s > INLINE_LATE_S
        if self._computed < self._window:
            return False
        moves = self._late * INLINE_WINDOW < INLINE_LATE_MAX * self._computed
        self._late = self._computed = 0
        if moves:
            self._window = min(2 * self._window, INLINE_WINDOW_MAX)
        return moves


# How much the last computation counts in what is expected of the next ones.
COST_WEIGHT: Final = 0.2
# The errors of a version go into the log at most so often.
MODEL_ERROR_LOG_S: Final = 1.0

Outputs = dict[str, Array]
Predict = Callable[[Inputs], Outputs]

log = logs.get(__name__)


class BatchPace(Enum):
    """How long a version computes, and so where."""

    INSTANT = "instant"  # at once, in the loop
    SHORT = "short"  # in the loop, with the others of its turn
    LONG = "long"  # in a thread


class BatchedCall:
    """A request on its way through a batcher."""

    __slots__ = ("future", "inputs", "key", "rows", "since_s", "timer")

    def __init__(
        self, inputs: Inputs, key: Hashable, rows: int, future: asyncio.Future[Outputs]
    ) -> None:
        self.inputs = inputs
        self.key = key
        self.rows = rows
        self.future = future
        self.since_s = time.monotonic()
        self.timer: asyncio.TimerHandle | None = None


class Batcher:
    """Computes with `predict`. Made and used in the event loop; only `predict` runs elsewhere."""

    def __init__(
        self,
        name: str,
        predict: Predict,
        limits: Limits,
        *,
        batches: bool,
        pace: BatchPace,
        service: str = "SERVICE",
    ) -> None:
        """`service`: whose settings its errors name."""
        self.name = name
        self._service = service
        self.limits = limits
        self.refused = 0
        self._predict = predict
        self._batches = batches
        self._loop = asyncio.get_running_loop()
        self._jobs = 0  # accepted and not answered
        self._busy = 0  # of these, in the present computation
        self._began_s = 0.0  # when that began; 0: nothing is computed
        self._cost_s = 0.0  # of one request, in the thread, by the last computations
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._queue: SimpleQueue[BatchedCall | None] = SimpleQueue()  # to the thread; None: end
        self._aside: deque[BatchedCall] = deque()  # taken from the queue, for a later batch
        self._turns: deque[BatchedCall] = deque()  # for the end of this turn of the loop
        self.pace = BatchPace.INSTANT if pace is BatchPace.SHORT and not batches else pace
        self._home = self.pace  # where it belongs, as far as was known at first
        self._judge = Judge()
        self._returning = False  # the thread ends what it has, and gets nothing more
        self._told_s = -math.inf
        if self.pace is BatchPace.LONG:
            self._start_thread()

    # --- asked in the loop -----------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        return max(0, self._jobs - self._busy)

    @property
    def running(self) -> int:
        return self._busy

    def busy_s(self, now_s: float) -> float:
        """For how long the present computation has run. May be asked by any thread."""
        began_s = self._began_s
        return now_s - began_s if began_s else 0.0

    async def compute(self, inputs: Inputs) -> Outputs:
        """Its outputs. `Full` at once when too many wait; `NotHere` after `close`; `TimedOut` and
        `ModelFailed`."""
        return self.at_once(inputs) if self.pace is BatchPace.INSTANT else await self.begin(inputs)

    def at_once(self, inputs: Inputs) -> Outputs:
        """`compute` for the pace `INSTANT`, without a coroutine."""
        if self._closed:
            raise self._not_here()
        self._began_s = began_s = time.monotonic()
        try:
            return self._predict(inputs)
        except BaseException as error:  # the user's code: whatever it raises ends one request only
            self._tell(error)
            raise failure(self.name, error) from error
        finally:
            self._began_s = 0.0
            self._computed(time.monotonic() - began_s)

    def begin(self, inputs: Inputs) -> asyncio.Future[Outputs]:
        """`compute` for the other paces. `Full` and `NotHere` are raised here."""
        if self._closed:
            raise self._not_here()
        self.check_capacity()
        key, rows = shape_of(inputs) if self._batches else (None, 1)
        job = BatchedCall(inputs, key, rows, self._loop.create_future())
        self._jobs += 1
        if self.pace is BatchPace.LONG:
            self._to_thread(job)
        else:
            if not self._turns:
                self._loop.call_soon(self._turn)
            self._turns.append(job)
        return job.future

    def check_capacity(self) -> None:
        """`Full`, if one more request would wait for too long. Cheap: asked before its body is
        read. Fewer than a batch never do: they are computed together."""
        waiting, limits = self._jobs - self._busy, self.limits
        if not waiting or waiting < (
            min(limits.batch_max, limits.queue_max) if self._batches else 1
        ):
            return
        if waiting >= limits.queue_max:
            why = f"no more than {limits.queue_max} may wait"
            more = settings.command(self._service, settings.QUEUE, 2 * limits.queue_max)
        elif waiting * self._cost_s > limits.patience_s:
            why = f"another one would wait for more than {limits.patience_s:g} s"
            longer = settings.seconds(2 * limits.patience_s)
            more = settings.command(self._service, settings.WAIT, longer)
        else:
            return
        self.refused += 1
        raise Full(
            f"{waiting} requests wait for {self.name}",
            why=f"it computes more slowly than requests come, and {why}",
            fix=f"try again later; or: holdfast scale {self._service} auto; or: {more}",
        )

    def _to_thread(self, job: BatchedCall) -> None:
        job.timer = self._loop.call_later(self.limits.timeout_s, self._too_late, job)
        if self._returning:
            self._turns.append(job)
        else:
            self._queue.put(job)

    async def close(self, wait_s: float) -> bool:
        """Take nothing more, and wait for what is there; whether all of it was answered."""
        self._closed = True
        if self._jobs:
            self._idle.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._idle.wait()
            except TimeoutError:
                log.warning("requests of an unloaded version are still computed", name=self.name)
        self._queue.put(None)
        return not self._jobs

    # --- in the loop -----------------------------------------------------------------------------

    def _turn(self) -> None:
        """Compute one batch here; what is left has its turn after the others'."""
        now_s = time.monotonic()
        batch = self._batch(self._turns, now_s)
        if batch:
            self._busy, self._began_s = len(batch), now_s
            results = self._results(batch)
            self._busy, self._began_s = 0, 0.0
            took_s = time.monotonic() - now_s
            self._deliver(batch, results)
            self._computed(took_s)
        if self._turns:
            self._loop.call_soon(self._turn)

    def _computed(self, took_s: float) -> None:
        """In the loop. What turns out to be long belongs into a thread."""
        if not self._judge.too_long(took_s):
            return
        log.warning("a version computes in a thread from now on", name=self.name, took_s=took_s)
        self.pace = BatchPace.LONG
        while self._turns:
            self._to_thread(self._turns.popleft())
        self._start_thread()

    def _return(self) -> None:
        """When the thread has nothing left: what has come since is computed here."""
        if not self._returning or self._jobs > len(self._turns):
            return
        self._returning = False
        self.pace = self._home
        self._queue.put(None)
        log.info("a version computes in the event loop again", name=self.name)
        if self._turns:
            self._loop.call_soon(self._turn)

    def _deliver(
        self, batch: Sequence[BatchedCall], results: Sequence[Outputs | HoldfastError]
    ) -> None:
        for job, result in zip(batch, results, strict=True):
            future = job.future
            if job.timer is not None:
                job.timer.cancel()
            if future.done():  # cancelled, or too late
                continue
            if isinstance(result, HoldfastError):
                future.set_exception(result)
            else:
                future.set_result(result)
        self._forget(len(batch))

    def _deliver_from_thread(
        self,
        batch: Sequence[BatchedCall],
        results: Sequence[Outputs | HoldfastError],
        own_s: float,
        took_s: float,
    ) -> None:
        self._deliver(batch, results)
        if self._home is not BatchPace.LONG and not (self._returning or self._closed):
            self._returning = self._judge.short_again(own_s, took_s)
        self._return()

    def _forget(self, jobs: int) -> None:
        self._jobs -= jobs
        if not self._jobs:
            self._idle.set()

    def _too_late(self, job: BatchedCall) -> None:
        if not job.future.done():
            job.future.set_exception(self._timed_out())

    def _not_here(self) -> NotHere:
        return NotHere(f"{self.name} is being unloaded", fix="ask another replica")

    def _timed_out(self) -> TimedOut:
        longer = settings.command(
            self._service, settings.TIMEOUT, settings.seconds(2 * self.limits.timeout_s)
        )
        return TimedOut(
            f"{self.name} did not answer within {self.limits.timeout_s:g} s",
            why="too much waits before it, or the computation takes too long",
            fix=f"try again later, or: {longer}",
        )

    # --- in the loop or in the thread ------------------------------------------------------------

    def _batch(self, waiting: deque[BatchedCall], now_s: float) -> list[BatchedCall]:
        """Take the first request, and those that may be computed with it. Those that nobody waits
        for any more are dropped on the way."""
        batch: list[BatchedCall] = []
        later: list[BatchedCall] = []
        rows = 0
        while waiting:
            job = waiting.popleft()
            if job.future.done() or now_s - job.since_s > self.limits.timeout_s:
                self._drop(job)
            elif not batch:
                batch.append(job)
                rows = job.rows
                if job.key is None or rows >= self.limits.batch_max:
                    break
            elif job.key == batch[0].key and rows + job.rows <= self.limits.batch_max:
                batch.append(job)
                rows += job.rows
                if rows >= self.limits.batch_max:
                    break
            else:
                later.append(job)
        waiting.extendleft(reversed(later))
        return batch

    def _drop(self, job: BatchedCall) -> None:
        self._call(lambda: self._deliver_one(job))

    def _deliver_one(self, job: BatchedCall) -> None:
        if job.timer is not None:
            job.timer.cancel()
        if not job.future.done():
            job.future.set_exception(self._timed_out())
        self._forget(1)
        self._return()

    def _call(self, what: Callable[[], None]) -> None:
        if self.pace is BatchPace.LONG:
            in_loop(self._loop, what)
        else:
            what()

    def _results(self, batch: Sequence[BatchedCall]) -> list[Outputs | HoldfastError]:
        """What comes of each request of the batch. Never raises."""
        try:
            outputs = self._predict(joined([job.inputs for job in batch]))
            if len(batch) == 1:
                return [outputs]
            return [*split(outputs, [job.rows for job in batch])]
        except BaseException as error:  # the user's code: whatever it raises ends one request only
            if len(batch) == 1:
                self._tell(error)
                return [failure(self.name, error)]
        found: list[Outputs | HoldfastError] = []
        for job in batch:
            self._began_s = time.monotonic()
            found += (
                [self._timed_out()]  # nobody waits for it any more
                if job.future.done()
                else self._results([job])
            )
        return found

    def _tell(self, error: BaseException) -> None:
        """A model that always fails must not fill the disk with it."""
        now_s = time.monotonic()
        if now_s - self._told_s >= MODEL_ERROR_LOG_S:
            self._told_s = now_s
            log.error("a version failed on a request", name=self.name, exc_info=error)

    # --- in the thread ---------------------------------------------------------------------------

    def _start_thread(self) -> None:
        ends = "`close` ends it by its queue; a computation that hangs is the replica's end"
        start_thread(self._run, f"compute {self.name}", lasts=ends)

    def _run(self) -> None:
        with changing_often():
            self._compute()

    def _compute(self) -> None:
        while self._gather():
            self._compute_next()

    def _compute_next(self) -> None:
        """One batch of what has come. Nothing of it is left when this returns: a thread that waits
        for the next requests must not keep the last ones in memory."""
        now_s = time.monotonic()
        batch = self._batch(self._aside, now_s)
        if not batch:
            return
        self._busy, self._began_s = len(batch), now_s
        own_s = time.thread_time()
        results = self._results(batch)
        # Here and not where they are delivered: the next computation may have begun by then,
        # and the watch over that one must not be reset.
        self._busy, self._began_s = 0, 0.0
        own_s, took_s = time.thread_time() - own_s, time.monotonic() - now_s
        each_s = took_s / len(batch)
        self._cost_s += (each_s - self._cost_s) * (COST_WEIGHT if self._cost_s else 1.0)
        in_loop(self._loop, self._deliver_from_thread, batch, results, own_s, took_s)

    def _gather(self) -> bool:
        """Wait until there is something to do, and take all that has come. False: it is over."""
        try:
            while True:
                job = self._queue.get(block=not self._aside)
                if job is None:
                    return False
                self._aside.append(job)
                while True:
                    another = self._queue.get_nowait()
                    if another is None:
                        self._queue.put(None)
                        return True
                    self._aside.append(another)
        except Empty:
            return True


def failure(name: str, error: BaseException) -> HoldfastError:
    """What a client is told of an error of the model: its kind and first line, no more."""
    if isinstance(error, ModelFailed):
        return error
    words = error.what if isinstance(error, HoldfastError) else first_line(error)
    return ModelFailed(f"{name} failed: {words}", fix="see the log of the replica")


def first_line(error: BaseException) -> str:
    """The kind of an error and the first line of its words, bounded."""
    words = str(error).strip().partition("\n")[0]
    kind = type(error).__name__
    return (f"{kind}: {words}" if words else kind)[:LOAD_REASON_CHARACTERS_MAX]
