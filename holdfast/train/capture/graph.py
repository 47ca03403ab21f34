"""One CUDA graph: the forward and the backward pass of a lane, with the memory that they use."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from warnings import catch_warnings, simplefilter

import torch

from holdfast.train.capture.deciding import Uncapturable
from holdfast.train.data.batch import mapped

Gradients = list[torch.Tensor | None]


@dataclass(frozen=True, slots=True)
class Computed:
    """What a function came to for a batch: its result, and the gradients of its loss."""

    result: Any
    gradients: Gradients

    def equals(self, other: Computed) -> bool:
        """Bit for bit, but for what is not a number. This waits for the device."""
        ours, theirs = leaves(self.result), leaves(other.result)
        pairs = [
            *zip(ours, theirs, strict=True),
            *zip(self.gradients, other.gradients, strict=True),
        ]
        return all(_same(one, two) for one, two in pairs)


class CapturePool:
    """What all graphs of a run share: a stream to capture on, memory, and the generator."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.index = torch.cuda.current_device() if device.index is None else device.index
        self.stream = torch.cuda.Stream(device)
        # Graphs never run at the same time, and what leaves one is copied: they may share memory.
        self.pool = torch.cuda.graph_pool_handle()

    @property
    def generator(self) -> torch.Generator:
        return torch.cuda.default_generators[self.index]

    def recover(self) -> None:
        """A capture has failed in the middle. torch leaves its generator and its allocator as if it
        were still under way: without this the next dropout would fail."""
        generator = self.generator
        with suppress(RuntimeError):
            generator.graphsafe_set_state(generator.clone_state())
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(self.index, self.pool)


class Graph:
    """A captured lane. What it reads and writes lies where it lay then."""

    def __init__(
        self,
        pool: CapturePool,
        data: Any,
        compute: Callable[[Any], Computed],
        written: Sequence[torch.Tensor],
    ) -> None:
        """Capture `compute` of data like this one. Nothing is computed. `written`: tensors that it
        writes to and that somebody asks whether they have changed."""
        self._written = list(written)
        self._inputs = [torch.empty_like(each) for each in leaves(data)]
        if [each.stride() for each in self._inputs] != [each.stride() for each in leaves(data)]:
            raise Uncapturable("the batch has a tensor with gaps in its memory")
        given = iter(self._inputs)
        self._graph = torch.cuda.CUDAGraph()
        self._computed = _captured(
            pool, self._graph, lambda: compute(mapped(data, lambda _: next(given)))
        )
        self.replays = 0

    def replay(self, data: Any) -> Computed:
        """Compute it for this data, which has the same form. The result is a copy; the gradients
        are overwritten by the next one."""
        if self._inputs:
            torch._foreach_copy_(self._inputs, leaves(data))
        self._graph.replay()
        if self._written:
            torch.autograd.graph.increment_version(self._written)
        self.replays += 1
        result = mapped(self._computed.result, torch.clone)
        return Computed(result, self._computed.gradients)


def leaves(data: Any) -> list[torch.Tensor]:
    """The tensors in it, in their order."""
    found: list[torch.Tensor] = []

    def take(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    mapped(data, take)
    return found


def _captured(
    pool: CapturePool, graph: torch.cuda.CUDAGraph, work: Callable[[], Computed]
) -> Computed:
    torch.cuda.synchronize(pool.device)
    # A cycle that keeps an autograd graph of before alive would bring its stream into this one.
    gc.collect()
    torch.cuda.empty_cache()
    with torch.cuda.stream(pool.stream):
        # Of other threads (they pin memory, or send sums) nothing is captured or forbidden.
        graph.capture_begin(pool=pool.pool, capture_error_mode="thread_local")
        try:
            found = work()
        except BaseException:
            with suppress(RuntimeError):
                graph.capture_end()
            raise
        graph.capture_end()
    return found


@contextmanager
def waiting_refused() -> Iterator[None]:
    """Whatever waits for the device raises a `RuntimeError`, as it would while it is captured; but
    then nothing is left half done."""
    before = torch.cuda.get_sync_debug_mode()
    with catch_warnings():
        simplefilter("ignore")  # "a prototype feature": what it does not notice fails later
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


def _same(one: torch.Tensor | None, two: torch.Tensor | None) -> bool:
    if one is None or two is None:
        return one is two
    if one.is_floating_point():
        return torch.equal(one.nan_to_num(), two.nan_to_num())
    return torch.equal(one, two)
