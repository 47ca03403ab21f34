"""The worker's side: what it pushes, what it pulls, what it keeps while a server is away.

A push carries the gradients of one batch to the homes of their names, and the answer has the values
that are newer than those the worker has: one request a server and batch. What could not be pushed
stays in a sum and goes with the next push; in the meantime the worker moves its own copy by a plain
gradient step, so that it does not compute the same again and again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from holdfast.train.modes.asynchronous.shard import NamedTensors
from holdfast.train.states.memory import entry, fill
from holdfast.train.states.state import StateEntry, TrainingState
from holdfast.wire.errors import PeerLost

# Ask the home of a name: its worker's number, the request's notes and arrays.
Ask = Callable[[int, Mapping[str, Any], list[StateEntry]], TrainingState]


@dataclass(slots=True)
class UnsentGradient:
    """A sum of gradients that is still to be pushed, each times its samples."""

    sum: torch.Tensor
    version: int  # of the weights that the first of them was computed with
    samples: int
    pushes: int


class Traffic:
    """For the worker's own thread; only `seen` is for others."""

    def __init__(
        self,
        names: NamedTensors,
        ask: Ask,
        groups: Mapping[str, dict[str, Any]],
        *,
        narrow: bool = False,
    ) -> None:
        """`narrow`: gradients travel as bf16, half the bytes."""
        self.names = names
        self._ask = ask
        self._narrow = narrow
        self._groups = groups  # by parameter its optimizer's group
        self._kept: dict[str, UnsentGradient] = {}
        self._lock = threading.Lock()
        self.versions: dict[str, int] = {}  # of the values that this worker has
        self.refused = 0  # pushes of a name that came too late
        self.alone = 0  # batches since all servers were there
        self.alone_ever = 0

    @torch.no_grad()
    def push(
        self, gradients: Mapping[str, torch.Tensor], samples: int, homes: Mapping[str, int]
    ) -> None:
        """Push the mean gradient of a batch, and get what is newer."""
        for name, gradient in gradients.items():
            total = (gradient * samples).cpu()
            kept = self._kept.get(name)
            if kept is None:
                self._kept[name] = UnsentGradient(total, self.versions.get(name, 0), samples, 1)
            else:
                kept.sum += total
                kept.samples += samples
                kept.pushes += 1
        if self._trade(homes, buffers=True):
            self.alone = 0
            return
        self.alone += 1
        self.alone_ever += 1
        for name in gradients.keys() & self._kept.keys():
            rate = float(self._groups[name].get("lr", 0.0))
            self.names.parameters[name].sub_(gradients[name], alpha=rate)

    def pull(self, homes: Mapping[str, int]) -> bool:
        """Push what was kept and get everything that is newer; whether all homes have answered."""
        return self._trade(homes, buffers=False)

    @property
    def waiting(self) -> bool:
        """Whether something is still to be pushed."""
        return bool(self._kept)

    def seen(self, names: Collection[str]) -> tuple[list[StateEntry], dict[str, Any]]:
        """Copies of the values that this worker has of these names, with their versions."""
        with self._lock:
            found = [name for name in names if name in self.versions]
            tensors = self.names.all
            entries = [entry(name, tensors[name].detach().cpu().clone()) for name in found]
            notes = {name: {"version": self.versions[name], "kept": None} for name in found}
        return entries, notes

    def _trade(self, homes: Mapping[str, int], *, buffers: bool) -> bool:
        by_home: dict[int, list[str]] = {}
        for name in self.names.all:
            by_home.setdefault(homes[name], []).append(name)
        complete = True
        for home, names in by_home.items():
            entries, pushed = self._cargo(names, buffers=buffers)
            known = {name: self.versions.get(name, -1) for name in names}
            try:
                answer = self._ask(home, {"ask": "push", "pushed": pushed, "known": known}, entries)
            except PeerLost:
                complete = False
                continue
            absent = set(answer.notes["absent"])
            self.refused += len(answer.notes["refused"])
            for name in pushed.keys() - absent:
                self._kept.pop(name, None)
            self._fill(answer)
            complete = complete and answer.notes["versions"].keys() == known.keys()
        return complete

    def _cargo(self, names: list[str], *, buffers: bool) -> tuple[list[StateEntry], dict[str, Any]]:
        entries, pushed = [], {}
        for name in names:
            kept = self._kept.get(name)
            if kept is not None:
                narrowed = self._narrow and kept.sum.is_floating_point()
                entries.append(entry(name, kept.sum.bfloat16() if narrowed else kept.sum))
                pushed[name] = [kept.version, kept.samples, kept.pushes]
            elif buffers and name in self.names.buffers:
                entries.append(entry(name, self.names.buffers[name]))
                pushed[name] = [self.versions.get(name, 0), 0, 0]
        return entries, pushed

    def _fill(self, answer: TrainingState) -> None:
        tensors = self.names.all
        with self._lock:
            for each in answer.entries:
                fill(tensors[each.name], each)
            self.versions.update(answer.notes["versions"])
