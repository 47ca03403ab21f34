"""Buffers of models (the running averages of a batch norm): one rule, whoever computes what.

Every lane of a step begins with the buffers as the step before left them. What lane 0 makes of them
is what the step leaves behind, on every worker. What the other lanes make of them is forgotten.
What hooks and updates make of them stays: they run on every worker, the same everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from holdfast.train.states.memory import entry, tensor_of
from holdfast.train.states.state import TrainingState
from holdfast.wire.errors import Usage


class Buffers:
    """The buffers of all tracked models. Those that no lane changes cost nothing."""

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        self._owners: dict[str, tuple[nn.Module, str]] = {}
        self._tensors: dict[str, torch.Tensor] = {}
        for name, owner, last, buffer in _buffers_of(models):
            self._owners[name] = owner, last
            self._tensors[name] = buffer
        modules = [module for model in models.values() for module in model.modules()]
        self._kept_by = [module._buffers for module in modules]
        self._count = sum(map(len, self._kept_by))
        self._absent = [
            (module, name)
            for module in modules
            for name, buffer in module._buffers.items()
            if buffer is None
        ]
        self._begin: dict[str, torch.Tensor] = {}
        self._versions: dict[str, int] = {}
        # What lane 0 made of them, if it was computed here: only of those that it changed.
        self._after: dict[str, torch.Tensor] | None = None
        self._copies: dict[str, torch.Tensor] = {}  # for that, at the same place in each step
        self.settle()

    @property
    def tensors(self) -> list[torch.Tensor]:
        return list(self._tensors.values())

    def replaced(self) -> str | None:
        """One in whose place its model has put another tensor; None: there is none."""
        for name, tensor in self._tensors.items():
            owner, last = self._owners[name]
            if owner._buffers[last] is not tensor:
                return name
        return None

    def settle(self) -> None:
        """What they are now is what the next step begins with."""
        self._after = None
        for name, tensor in self._tensors.items():
            self._begin[name] = tensor.detach().clone()
            self._versions[name] = tensor._version

    def release(self) -> None:
        """No lane is under way: others than lanes may change what they have changed."""

    def before_lane(self) -> None:
        """Forget what the lane before did to them."""
        self._set(self._changed(), self._begin)

    def copies(self) -> dict[str, torch.Tensor]:
        """What they are now."""
        return {name: tensor.detach().clone() for name, tensor in self._tensors.items()}

    def restore(self, copies: Mapping[str, torch.Tensor]) -> None:
        """What they were then, in the middle of a lane or at its beginning."""
        self._changed()
        _copy(list(copies), self._tensors, copies)
        for name in copies:
            self._versions[name] = -1  # which need not be what the step began with

    def absorb(self) -> None:
        """What they are now, no lane did: a hook, or the update. It stays."""
        changed = self._changed()
        _copy(changed, self._begin, self._tensors)
        for name in changed:
            self._versions[name] = self._tensors[name]._version

    def fit(self, models: Mapping[str, nn.Module]) -> bool:
        """Whether these are still all buffers of the models."""
        return self._tensors.keys() == {name for name, *_ in _buffers_of(models)}

    def after_lane(self, lane: int) -> None:
        """Keep what lane 0 made of them."""
        self._refuse_new()
        if lane == 0:
            changed = self._changed()
            for name in changed:
                if name not in self._copies:
                    self._copies[name] = torch.empty_like(self._tensors[name])
            _copy(changed, self._copies, self._tensors)
            self._after = {name: self._copies[name] for name in changed}

    def outcome(self) -> bytes | None:
        """What lane 0 made of them, if it was computed here, for those who have not computed it."""
        if self._after is None:
            return None
        found = _on_host(self._after)
        spelled = [entry(name, tensor) for name, tensor in found.items()]
        return b"".join(TrainingState.of(0, spelled).buffers()) if spelled else b""

    def forget(self) -> None:
        """The lanes are to be computed again."""
        self._after = None

    def take(self, spelled: bytes) -> None:
        """The step is complete: this is what its lane 0 made of them; not read where it was here
        that it was computed."""
        self.before_lane()
        found, self._after = self._after, None
        if found is None and spelled:
            entries = TrainingState.read(memoryview(spelled)).entries
            found = {each.name: tensor_of(each) for each in entries}
        if found:
            _copy(list(found), self._begin, found)
            self._set(list(found), found)

    def _set(self, names: list[str], values: Mapping[str, torch.Tensor]) -> None:
        _copy(names, self._tensors, values)
        for name in names:
            self._versions[name] = self._tensors[name]._version

    def _refuse_new(self) -> None:
        """A buffer that a lane makes would be known to the workers that computed the lane alone."""
        found = [name for module, name in self._absent if module._buffers[name] is not None]
        if found or sum(map(len, self._kept_by)) != self._count:
            raise Usage(
                f"the loop's body made a buffer of a tracked model: {found[0]}"
                if found
                else "the loop's body registered a buffer of a tracked model",
                why="the first batch gives it its value, and each worker has another first batch",
                fix="give it a tensor of its full shape before the loop, or in a hook",
            )

    def _changed(self) -> list[str]:
        changed = []
        for name, tensor in self._tensors.items():
            owner, last = self._owners[name]
            if (now := owner._buffers[last]) is not tensor:
                # The model has put another tensor in its place; ours stays, with its value.
                if now is not None:
                    _check_shape(name, now, tensor)
                    with torch.no_grad():
                        tensor.copy_(now)
                owner._buffers[last] = tensor
                self._versions[name] = -1
            _check_shape(name, tensor, self._begin[name])
            # The kernels of batch norms write their averages without counting it as a change.
            if tensor._version != self._versions[name] or isinstance(owner, _NormBase):
                changed.append(name)
        return changed


def _copy(
    names: list[str], into: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]
) -> None:
    """Values of one type and place in one go: on a device each copy is a launch."""
    if not names:
        return
    groups: dict[Any, list[str]] = {}
    for name in names:
        one, other = into[name], values[name]
        groups.setdefault((one.device, other.device, one.dtype, other.dtype), []).append(name)
    with torch.no_grad():
        for group in groups.values():
            torch._foreach_copy_([into[name] for name in group], [values[name] for name in group])


def _on_host(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same on the host; those of one type travel together, since each journey waits."""
    found: dict[str, torch.Tensor] = {}
    groups: dict[Any, list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.device.type == "cpu":
            found[name] = tensor
        else:
            groups.setdefault((tensor.device, tensor.dtype), []).append(name)
    for group in groups.values():
        together = torch.cat([tensors[name].reshape(-1) for name in group]).cpu()
        parts = torch.split(together, [tensors[name].numel() for name in group])
        for name, part in zip(group, parts, strict=True):
            found[name] = part.view(tensors[name].shape)
    return {name: found[name] for name in tensors}


def _check_shape(name: str, now: torch.Tensor, before: torch.Tensor) -> None:
    if now.shape != before.shape:
        raise Usage(
            f"the buffer {name} has changed its shape from {tuple(before.shape)} to "
            f"{tuple(now.shape)}",
            why="each lane begins with the buffers that the step before left behind",
            fix="give it its full shape before the loop, and count in another what is filled",
        )


def _buffers_of(
    models: Mapping[str, nn.Module],
) -> Iterator[tuple[str, nn.Module, str, torch.Tensor]]:
    """Each buffer: its name, the module that has it, what it is called there, and itself."""
    for title, model in models.items():
        for name, buffer in model.named_buffers():
            path, _, last = name.rpartition(".")
            yield f"{title}/{name}", model.get_submodule(path), last, buffer
