"""The names that one server holds, and how they are updated.

A name is a trained parameter or a buffer of a tracked model, `model/0.weight`. A parameter gets
gradients: sums over samples, which become one update of their mean when as many pushes have come as
the job has lanes. The update is made by a copy of the script's own optimizer that knows only this
server's tensors; what its groups say (the learning rate, above all) is taken from the script's
before each update, so schedulers and settings have their effect. A buffer gets values: the last one
is kept.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from holdfast.train.states.memory import entry, tensor_of
from holdfast.train.states.skeleton import decode, encode
from holdfast.train.states.state import StateEntry, TrainingState
from holdfast.train.states.tracked import Tracked, is_scheduler
from holdfast.wire.errors import Usage

# Between a name and the tensors that optimizers keep for it; no parameter has it in its name.
_KEPT = "//"


class NamedTensors(NamedTuple):
    """The script's own tensors by name: what is trained, and the buffers."""

    parameters: dict[str, nn.Parameter]
    buffers: dict[str, torch.Tensor]

    @property
    def all(self) -> dict[str, torch.Tensor]:
        return {**self.parameters, **self.buffers}


def names_of(tracked: Tracked) -> NamedTensors:
    """`Usage` if something is tracked that servers cannot combine."""
    for name, thing in tracked.objects.items():
        if not isinstance(thing, (nn.Module, Optimizer)) and not is_scheduler(thing):
            raise Usage(
                f"{name} is a {type(thing).__name__}, which the asynchronous mode cannot keep",
                why="servers combine gradients and buffers; they know no rule for its state",
                fix="leave it out of run.track, or write `mode: sync`",
            )
    optimized = {
        id(each)
        for optimizer in tracked.optimizers.values()
        for group in optimizer.param_groups
        for each in group["params"]
    }
    trained = {id(each) for each in tracked.parameters()} & optimized
    names, seen = NamedTensors({}, {}), set[int]()
    for title, model in tracked.models.items():
        for path, parameter in model.named_parameters():
            if id(parameter) in trained and id(parameter) not in seen:
                seen.add(id(parameter))
                names.parameters[f"{title}/{path}"] = parameter
        names.buffers.update((f"{title}/{path}", each) for path, each in model.named_buffers())
    return names


@dataclass(slots=True)
class ServedName:
    """A name that is at home here."""

    value: torch.Tensor
    version: int  # updates that it has had
    sum: torch.Tensor | None = None  # of gradients, each times its samples
    samples: int = 0
    pushes: int = 0


class Shard:
    """One server's names. Any thread may call it."""

    def __init__(self, tracked: Tracked, lanes: int, staleness: int) -> None:
        self.names = names_of(tracked)
        self._lanes = lanes
        self._staleness = staleness
        self._lock = threading.RLock()
        self._script = tracked.optimizers
        # As long as a name is not at home here, its parameter is empty.
        self._mine = {name: nn.Parameter(torch.empty(0)) for name in self.names.parameters}
        memo: dict[int, Any] = {
            id(script): self._mine[name] for name, script in self.names.parameters.items()
        }
        self._optimizers = {
            name: copy.deepcopy(each, dict(memo)) for name, each in self._script.items()
        }
        for optimizer in self._optimizers.values():
            optimizer.state.clear()
        self.held: dict[str, ServedName] = {}
        self.updates = 0
        self.refused = 0

    # --- pushes and pulls ----------------------------------------------------------------------

    @torch.no_grad()
    def push(self, request: TrainingState) -> tuple[list[str], list[str]]:
        """Take what a worker pushes; the names that were refused, and those not at home here."""
        refused, absent = [], []
        with self._lock:
            for each in request.entries:
                version, samples, pushes = request.notes["pushed"][each.name]
                held = self.held.get(each.name)
                if held is None:
                    absent.append(each.name)
                elif each.name in self.names.buffers:
                    held.value.copy_(tensor_of(each))
                    held.version += 1
                elif held.version - version > self._staleness:
                    refused.append(each.name)
                    self.refused += 1
                else:
                    gradient = tensor_of(each).to(held.value.dtype)
                    self._add(held, gradient, samples, pushes)
            self._update([name for name, held in self.held.items() if held.pushes >= self._lanes])
        return refused, absent

    def newer(self, known: Mapping[str, int]) -> tuple[list[StateEntry], dict[str, int]]:
        """Copies of those values that are newer than what is known, and the versions of all that
        were asked for and are at home here."""
        with self._lock:
            found = {name: self.held[name] for name in known if name in self.held}
            entries = [
                entry(name, held.value.clone())
                for name, held in found.items()
                if held.version != known[name]
            ]
            return entries, {name: held.version for name, held in found.items()}

    def flush(self, names: Collection[str] | None = None) -> None:
        """Make an update of what has come (for these names), however little it is."""
        with self._lock, torch.no_grad():
            ready = [name for name, held in self.held.items() if held.pushes]
            self._update([name for name in ready if names is None or name in names])

    def _add(self, held: ServedName, gradient: torch.Tensor, samples: int, pushes: int) -> None:
        if held.sum is None:
            held.sum = gradient
        else:
            held.sum += gradient
        held.samples += samples
        held.pushes += pushes

    def _update(self, ready: list[str]) -> None:
        if not ready:
            return
        for name in ready:
            held = self.held[name]
            assert held.sum is not None
            self._mine[name].grad = held.sum / max(held.samples, 1)
            held.sum, held.samples, held.pushes = None, 0, 0
            held.version += 1
        for name, optimizer in self._optimizers.items():
            groups = self._script[name].param_groups
            for mine, theirs in zip(optimizer.param_groups, groups, strict=True):
                mine.update(
                    {
                        key: value.clone() if isinstance(value, torch.Tensor) else value
                        for key, value in theirs.items()
                        if key != "params"
                    }
                )
            with torch.enable_grad():
                optimizer.step()
        for name in ready:
            self._mine[name].grad = None
        self.updates += 1

    # --- moving --------------------------------------------------------------------------------

    def take(
        self,
        found: TrainingState | None,
        name: str,
        version: int,
        kept: Any,
        reported: TrainingState,
    ) -> None:
        """This name is at home here from now on: its value is in `found` (None: the script's own),
        what optimizers keep of it is `kept`, a skeleton whose tensors are in `told`."""
        with self._lock, torch.no_grad():
            value = (
                self.names.all[name].detach().cpu().clone()
                if found is None
                else tensor_of(found[name])
            )
            if name in self._mine:
                parameter = self._mine[name]
                parameter.data = value
                value = parameter.data
                for title, skeleton in (kept or {}).items():
                    state = decode(skeleton, partial(_tensor, reported, name))
                    self._optimizers[title].state[parameter] = state
            self.held[name] = ServedName(value, version)

    def drop(self, names: Iterable[str]) -> None:
        """These are at home elsewhere."""
        with self._lock:
            for name in names:
                self.held.pop(name, None)
                if name in self._mine:
                    self._mine[name].data = torch.empty(0)
                    for optimizer in self._optimizers.values():
                        optimizer.state.pop(self._mine[name], None)

    def spelled(
        self, names: Collection[str] | None = None
    ) -> tuple[list[StateEntry], dict[str, Any]]:
        """Copies of everything that is held of these names, and by name its version and the
        skeleton of what optimizers keep. Pushes that made no update yet are not in it."""
        entries: list[StateEntry] = []
        notes: dict[str, Any] = {}
        with self._lock:
            for name, held in self.held.items():
                if names is not None and name not in names:
                    continue
                tensors: dict[str, torch.Tensor] = {}
                kept = {
                    title: encode(optimizer.state[self._mine[name]], title, tensors)
                    for title, optimizer in self._optimizers.items()
                    if name in self._mine and self._mine[name] in optimizer.state
                }
                entries.append(entry(name, held.value.clone()))
                entries += [
                    entry(f"{name}{_KEPT}{path}", tensor.clone())
                    for path, tensor in tensors.items()
                ]
                notes[name] = {"version": held.version, "kept": kept}
        return entries, notes


def _tensor(reported: TrainingState, name: str, path: str) -> torch.Tensor:
    return tensor_of(reported[f"{name}{_KEPT}{path}"])
