"""While a version is rolled out: its outputs are looked at, and compared with the stable version's.

Outside of a rollout there is none of this. In one, each answer of both versions is looked at for
what guards forbid. If users want the versions compared, the next one computes a request of the
stable one now and then, after that was answered: one at a time, while neither has others waiting,
and for a small share of the time. All of it happens in the replica's event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np

from holdfast.serve.records import Compared, Guards, OutputStats
from holdfast.serve.replica.batching import Array, Batcher, BatchPace, Inputs, Outputs
from holdfast.wire.errors import HoldfastError

# Values of one output that are compared of one request: a longer one takes the loop for too long.
SHADOW_VALUES_MAX: Final = 65_536
# Larger values count as this: their squares must have a sum.
SHADOW_VALUE_MAX: Final = 1e100

_FLOATS: Final = "f"
_NUMBERS: Final = "fiub"
_LABELS: Final = "iubO"  # numbers without fractions, and texts


class OutputWatch:
    """What was seen of one version's outputs."""

    __slots__ = ("_answers", "_compared", "_guards", "_nonfinite", "_outside")

    def __init__(self, guards: Guards) -> None:
        self._guards = guards
        self._answers = 0
        self._nonfinite: dict[str, int] = {}
        self._outside: dict[str, int] = {}
        self._compared: dict[str, _Sums] = {}

    def breaks(self, outputs: Mapping[str, Array]) -> bool:
        """Count an answer; whether it breaks a guard."""
        self._answers += 1
        guards, broken = self._guards, False
        for name, array in outputs.items():
            kind = array.dtype.kind
            finite = kind != _FLOATS or guards.nonfinite_max is None or np.isfinite(array).all()
            if not finite:
                self._nonfinite[name] = self._nonfinite.get(name, 0) + 1
            span = guards.ranges.get(name)
            within = span is None or kind not in _NUMBERS or _is_within(array, *span)
            if not within:
                self._outside[name] = self._outside.get(name, 0) + 1
            broken = broken or not (finite and within)
        return broken

    def compare(self, live: Mapping[str, Array], own: Mapping[str, Array]) -> None:
        """Count what the stable version and this one gave for the same request."""
        for name, array in own.items():
            other = live.get(name)
            if other is not None and other.shape == array.shape and array.size:
                self._compared.setdefault(name, _Sums()).add(other, array)

    def counts(self) -> OutputStats:
        compared = {name: sums.counts() for name, sums in self._compared.items()}
        return OutputStats(self._answers, dict(self._nonfinite), dict(self._outside), compared)


@dataclass(slots=True)
class _Sums:
    """`Compared`, growing."""

    requests: int = 0
    values: int = 0
    sums: list[float] = field(default_factory=lambda: [0.0] * 4)
    rows: int = 0
    disagreed: int = 0

    def add(self, live: Array, own: Array) -> None:
        self.requests += 1
        if live.dtype.kind in _NUMBERS and own.dtype.kind in _NUMBERS:
            before, after = _values(live), _values(own)
            both = np.isfinite(before) & np.isfinite(after)
            self.values += int(both.sum())
            for at, values in enumerate((before[both], after[both])):
                small = np.clip(values, -SHADOW_VALUE_MAX, SHADOW_VALUE_MAX)
                self.sums[2 * at] += float(small.sum())
                self.sums[2 * at + 1] += float(np.square(small).sum())
        classes = _classes(live), _classes(own)
        if classes[0] is not None and classes[1] is not None:
            self.rows += int(classes[0].size)
            self.disagreed += int((classes[0] != classes[1]).sum())

    def counts(self) -> Compared:
        live, live_squares, own, own_squares = self.sums
        return Compared(
            self.requests,
            self.values,
            live,
            live_squares,
            own,
            own_squares,
            self.rows,
            self.disagreed,
        )


def _is_within(array: Array, low: float, high: float) -> bool:
    """A NaN is not outside: it is counted as what it is."""
    return not array.size or not (array.min() < low or array.max() > high)


def _values(array: Array) -> Array:
    """The first of them, as numbers."""
    return array.ravel()[:SHADOW_VALUES_MAX].astype(np.float64)


def _classes(array: Array) -> Array | None:
    """The class that each row names: a label itself, or where its largest value stands; None: it
    names none."""
    if array.dtype.kind in _LABELS:
        return array.ravel()[:SHADOW_VALUES_MAX]
    if array.ndim < 2 or array.shape[-1] < 2 or array.dtype.kind not in _FLOATS:
        return None
    rows = array.reshape(-1, array.shape[-1])[: max(1, SHADOW_VALUES_MAX // array.shape[-1])]
    found: Array = rows.argmax(axis=-1)
    return found


class WatchedVersion(Protocol):
    """A version that is loaded, as far as it matters here (`engine.HeldVersion`)."""

    batcher: Batcher

    @property
    def record(self) -> Any: ...


class RolloutWatch:
    """The two versions of a rollout. `find`: a version that is loaded here, by its number."""

    def __init__(
        self,
        stable: int,
        next_: int,
        guards: Guards,
        find: Callable[[int], WatchedVersion | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.key = (stable, next_, guards)
        self._stable, self._next, self._guards = stable, next_, guards
        self._find = find
        self._clock = clock
        self._watches = {stable: OutputWatch(guards), next_: OutputWatch(guards)}
        self._shadowing = False
        self._not_before_s = 0.0

    def breaks(self, number: int, outputs: Mapping[str, Array]) -> bool:
        """Count an answer of this version; whether it breaks a guard."""
        watch = self._watches.get(number)
        return watch is not None and watch.breaks(outputs)

    def counts(self) -> dict[int, OutputStats]:
        return {number: watch.counts() for number, watch in self._watches.items()}

    def offer(self, number: int, inputs: Inputs, outputs: Outputs) -> None:
        """A version has answered this. Perhaps the next one computes it too, when the answer is on
        its way."""
        if number != self._stable or self._shadowing or not self._guards.compares:
            return
        if self._clock() >= self._not_before_s and self._idle() is not None:
            self._shadowing = True
            asyncio.get_running_loop().call_soon(self._shadow, inputs, outputs)

    def _idle(self) -> WatchedVersion | None:
        """The next version, if it can compute what the stable one can, and nobody has to wait."""
        stable, next_ = self._find(self._stable), self._find(self._next)
        if stable is None or next_ is None or stable.batcher.waiting:
            return None
        if next_.batcher.waiting or next_.batcher.running:
            return None
        if stable.record.signature.inputs != next_.record.signature.inputs:
            return None
        return next_

    def _shadow(self, inputs: Inputs, live: Outputs) -> None:
        next_, began_s = self._idle(), self._clock()
        if next_ is None:
            self._shadowing = False
            return
        batcher = next_.batcher
        try:
            if batcher.pace is BatchPace.INSTANT:
                self._done(live, batcher.at_once(inputs), began_s)
                return
            future = batcher.begin(inputs)
        except HoldfastError:  # what it does to requests of its own is counted there
            self._done(live, None, began_s)
            return

        def computed(future: asyncio.Future[Outputs]) -> None:
            failed = future.cancelled() or future.exception() is not None
            self._done(live, None if failed else future.result(), began_s)

        future.add_done_callback(computed)

    def _done(self, live: Outputs, own: Outputs | None, began_s: float) -> None:
        now_s = self._clock()
        self._shadowing = False
        self._not_before_s = now_s + (now_s - began_s) * (1 / self._guards.shadow_share - 1)
        if own is not None:
            self._watches[self._next].compare(live, own)
