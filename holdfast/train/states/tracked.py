"""What a script has asked to keep: models, optimizers, schedulers, whatever has a state.

It becomes entries and notes of a `TrainingState` and is filled from one, in place: the script's own
tensors get the values, so nothing that holds a reference to them has to be told.

    model/<parameter or buffer>                 a tensor of a module
    optimizer/state.<parameter>.<key>           what an optimizer keeps of a parameter
    <name>/<path>                               a tensor of any other object's state_dict()
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Protocol, runtime_checkable

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from holdfast.train.states.memory import entry, fill, tensor_of
from holdfast.train.states.skeleton import decode, encode
from holdfast.train.states.state import StateEntry, TrainingState
from holdfast.wire.errors import Usage


class Mirrors:
    """The host's copies of tensors, by name."""

    def __init__(self) -> None:
        self._held: dict[str, torch.Tensor] = {}

    def of(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The same tensors on the host: those of a GPU as copies that stay as they are until the
        next call, others themselves."""
        found, devices = dict(tensors), set()
        before, self._held = self._held, {}
        for name, tensor in tensors.items():
            if tensor.device.type != "cuda" or tensor.layout != torch.strided:
                continue
            mirror = before.get(name)
            if mirror is None or (mirror.shape, mirror.dtype) != (tensor.shape, tensor.dtype):
                mirror = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._held[name] = found[name] = mirror.copy_(tensor.detach(), non_blocking=True)
            devices.add(tensor.device)
        for device in devices:
            torch.cuda.synchronize(device)
        return found


# No object can have such a name: theirs have no slash.
_FROZEN: Final = "frozen/"
_GROUPS: Final = "groups/"
_EVALUATING: Final = "evaluating/"
_NUMBERS: Final = "numbers/"  # before a model's name: plain attributes that hooks set


@runtime_checkable
class Stateful(Protocol):
    """Anything that can say what it is and become it again."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any, /) -> Any: ...


class Tracked:
    """The objects of one run, by the names that the script gave them."""

    def __init__(self) -> None:
        self.objects: dict[str, Stateful] = {}
        self._carried: set[str] = set()  # names of plain attributes of modules
        self._mirrors = Mirrors()
        self._modes: dict[int, bool] = {}  # of modules that are lent to an evaluation: their own

    def add(self, name: str, thing: object) -> None:
        if "/" in name or not name:
            raise Usage(f"{name!r} cannot name a tracked object", fix="give a name without a slash")
        if not isinstance(thing, Stateful):
            raise Usage(
                f"{name} is a {type(thing).__name__}, which cannot be tracked",
                why="it has no state_dict() and load_state_dict()",
                fix="give it both, or leave it out of run.track",
            )
        if self.objects.get(name, thing) is not thing:
            raise Usage(f"two objects are tracked as {name!r}", fix="give each a name of its own")
        self.objects[name] = thing

    @property
    def models(self) -> dict[str, nn.Module]:
        return {name: it for name, it in self.objects.items() if isinstance(it, nn.Module)}

    @property
    def optimizers(self) -> dict[str, Optimizer]:
        return {name: it for name, it in self.objects.items() if isinstance(it, Optimizer)}

    def parameters(self) -> list[nn.Parameter]:
        """Those that are trained, each once, in the order in which the models were tracked: what an
        optimizer holds (all, where none is tracked) and what wants a gradient now."""
        optimizers = self.optimizers
        held = {id(each) for it in optimizers.values() for each in _parameters_of(it)}
        found: dict[int, nn.Parameter] = {}
        for model in self.models.values():
            for parameter in model.parameters():
                if parameter.requires_grad and (id(parameter) in held or not optimizers):
                    found.setdefault(id(parameter), parameter)
        for name, optimizer in optimizers.items():
            for parameter in _parameters_of(optimizer):
                if parameter.requires_grad and id(parameter) not in found:
                    raise Usage(
                        f"{name} updates a parameter of shape {list(parameter.shape)} that belongs "
                        "to no tracked model",
                        why="a worker that joins could not be given it",
                        fix="track its model too: run.track(model=..., optimizer=...)",
                    )
        return list(found.values())

    def parameter_names(self) -> dict[int, str]:
        """What each parameter of the models is called in a state, by its id."""
        found: dict[int, str] = {}
        for title, model in self.models.items():
            for name, parameter in model.named_parameters():
                found.setdefault(id(parameter), f"{title}/{name}")
        return found

    def names_of(self, optimizers: Iterable[object]) -> list[str]:
        """What these are tracked as."""
        names = {id(thing): name for name, thing in self.objects.items()}
        try:
            return [names[id(each)] for each in optimizers]
        except KeyError:
            raise Usage(
                "run.step(only=...) with an optimizer that is not tracked",
                fix="track it: run.track(optimizer=...)",
            ) from None

    def carry(self, attributes: Iterable[str]) -> None:
        """Plain numbers that modules keep under these names are part of the state: hooks set them,
        as the rate of a dropout."""
        self._carried.update(set(attributes) - {"training"})

    # --- modes ---------------------------------------------------------------------------------

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """All modules in evaluation mode for a moment: what they were is what a state says."""
        modules = [each for model in self.models.values() for each in model.modules()]
        self._modes = {id(each): each.training for each in modules}
        try:
            for model in self.models.values():
                model.eval()
            yield
        finally:
            modes, self._modes = self._modes, {}
            for module in modules:
                module.training = modes[id(module)]

    def _evaluating(self, model: nn.Module) -> list[str]:
        """The modules in evaluation mode: a hook may leave some so, to freeze batch norms."""
        return [
            path
            for path, module in model.named_modules()
            if not self._modes.get(id(module), module.training)
        ]

    def _evaluate(self, model: nn.Module, paths: Iterable[str] | None) -> None:
        if paths is None:
            return
        evaluating = set(paths)
        for path, module in model.named_modules():
            if id(module) in self._modes:
                self._modes[id(module)] = path not in evaluating
            else:
                module.training = path not in evaluating

    # --- to a state and back -------------------------------------------------------------------

    def entries(self) -> tuple[list[StateEntry], dict[str, Any]]:
        """Views of all tensors, and what else there is of each object, as JSON."""
        everything: dict[str, torch.Tensor] = {}
        skeletons: dict[str, Any] = {}
        names = self.parameter_names()
        for name, thing in self.objects.items():
            tensors: dict[str, torch.Tensor] = {}
            if isinstance(thing, nn.Module):
                tensors.update(_tensors_of(thing))
                skeletons[name] = encode(_extra_of(thing), "extra", tensors)
                skeletons[_FROZEN + name] = _frozen(thing)
                skeletons[_EVALUATING + name] = self._evaluating(thing)
                if self._carried and (numbers := _numbers(thing, self._carried)):
                    skeletons[_NUMBERS + name] = numbers
            elif isinstance(thing, Optimizer):
                skeletons[name] = encode(thing.state_dict(), "", tensors)
                skeletons[_GROUPS + name] = _groups(thing, names)
            else:
                skeletons[name] = encode(thing.state_dict(), "", tensors)
            everything.update(
                (f"{name}/{path.lstrip('.')}", tensor) for path, tensor in tensors.items()
            )
        here = self._mirrors.of(everything)
        return [entry(name, tensor) for name, tensor in here.items()], skeletons

    def adopt(self, state: TrainingState, skeletons: Mapping[str, Any]) -> None:
        """Take over what `entries` has said: values, what wants a gradient, which modules are in
        evaluation mode, and which parameters an optimizer holds."""
        if missing := {name for name in skeletons if "/" not in name} ^ self.objects.keys():
            raise Usage(
                "the job's state and this script track other objects",
                why=f"only one of them has {', '.join(sorted(missing))}",
                fix="run the same script, or start a new job",
            )
        found = {each.name: each for each in state.entries}
        names = self.parameter_names()
        by_name = {names[id(it)]: it for model in self.models.values() for it in model.parameters()}
        for name, thing in self.objects.items():
            if isinstance(thing, nn.Module):
                for path, tensor in _tensors_of(thing):
                    fill(tensor, _entry(found, f"{name}/{path}"))
                _freeze(thing, skeletons.get(_FROZEN + name))
                self._evaluate(thing, skeletons.get(_EVALUATING + name))
                for path, attribute, number in skeletons.get(_NUMBERS + name, ()):
                    setattr(thing.get_submodule(path), attribute, number)
            elif isinstance(thing, Optimizer):
                _regroup(thing, skeletons.get(_GROUPS + name), by_name)
            value = decode(skeletons[name], partial(_tensor, found, name))
            if isinstance(thing, nn.Module):
                _set_extra(thing, value)
            elif isinstance(thing, Optimizer):
                _set_optimizer(thing, value)
            else:
                thing.load_state_dict(value)


def is_scheduler(thing: object) -> bool:
    """Whether it is stepped without an argument."""
    return isinstance(thing, LRScheduler) and not isinstance(
        thing, torch.optim.lr_scheduler.ReduceLROnPlateau
    )


def _tensor(found: Mapping[str, StateEntry], name: str, path: str) -> torch.Tensor:
    return tensor_of(_entry(found, f"{name}/{path.lstrip('.')}"))


def _entry(found: Mapping[str, StateEntry], name: str) -> StateEntry:
    if name not in found:
        raise Usage(
            f"the job's state has no {name!r}",
            why="the script, or a setting that shapes the model, is not the one that made it",
            fix="run the same script with the same settings, or start a new job",
        )
    return found[name]


def _tensors_of(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _extra_of(model: nn.Module) -> dict[str, Any]:
    return {
        path: module.get_extra_state()
        for path, module in model.named_modules()
        if type(module).get_extra_state is not nn.Module.get_extra_state
    }


def _set_extra(model: nn.Module, extra: Mapping[str, Any]) -> None:
    for path, value in extra.items():
        model.get_submodule(path).set_extra_state(value)


def _frozen(model: nn.Module) -> list[str]:
    """The parameters that want no gradient now: hooks may thaw them, and freeze others."""
    return [name for name, each in model.named_parameters() if not each.requires_grad]


def _freeze(model: nn.Module, frozen: Iterable[str] | None) -> None:
    if frozen is None:
        return
    names = set(frozen)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad == (name in names):
            parameter.requires_grad_(name not in names)


def _numbers(model: nn.Module, attributes: set[str]) -> list[list[Any]]:
    return [
        [path, name, module.__dict__[name]]
        for path, module in model.named_modules()
        for name in sorted(attributes & module.__dict__.keys())
        if type(module.__dict__[name]) in (bool, int, float)
    ]


def _groups(optimizer: Optimizer, names: Mapping[int, str]) -> list[list[str]]:
    """What its groups hold, by name: a hook may have added one."""
    return [[names.get(id(each), "") for each in it["params"]] for it in optimizer.param_groups]


def _regroup(
    optimizer: Optimizer, groups: list[list[str]] | None, by_name: Mapping[str, nn.Parameter]
) -> None:
    """Let it hold the same parameters in the same groups. What else a group has comes with the rest
    of its state."""
    if groups is None or "" in {name for names in groups for name in names}:
        return
    now = optimizer.param_groups
    del now[len(groups) :]
    for group, names in zip(now, groups, strict=False):
        group["params"] = [by_name[name] for name in names]
    for names in groups[len(now) :]:
        optimizer.add_param_group({"params": [by_name[name] for name in names]})


def _parameters_of(optimizer: Optimizer) -> Iterable[nn.Parameter]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _set_optimizer(optimizer: Optimizer, value: Mapping[str, Any]) -> None:
    """In place where the tensors are there already. Not `load_state_dict`: that would round what an
    optimizer keeps in a wider type than its parameter's. One that says in words of its own what
    there is to keep (Lookahead, with the optimizer that it wraps) also reads them itself."""
    if type(optimizer).load_state_dict is not Optimizer.load_state_dict:
        optimizer.load_state_dict(dict(value))
        return
    pairs = [(group, each) for group in optimizer.param_groups for each in group["params"]]
    for index, (group, parameter) in enumerate(pairs):
        kept = optimizer.state[parameter]
        new = value["state"].get(index, {})
        for key in kept.keys() - new.keys():
            del kept[key]
        for key, it in new.items():
            old = kept.get(key)
            if not isinstance(it, torch.Tensor):
                kept[key] = it
            elif isinstance(old, torch.Tensor) and old.shape == it.shape and old.dtype == it.dtype:
                old.copy_(it)
            elif key == "step" and not (group.get("capturable") or group.get("fused")):
                kept[key] = it
            else:
                kept[key] = it.to(parameter.device)
        if not kept:
            del optimizer.state[parameter]
    others = {key: it for key, it in value["state"].items() if not isinstance(key, int)}
    for key in [key for key in optimizer.state if isinstance(key, str) and key not in others]:
        del optimizer.state[key]
    optimizer.state.update(others)  # what an optimizer keeps of no parameter in particular
    for group, said in zip(optimizer.param_groups, value["param_groups"], strict=True):
        group.update({key: it for key, it in said.items() if key != "params"})
