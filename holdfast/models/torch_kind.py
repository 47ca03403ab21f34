"""Torch modules: built without memory, then given their weights from the mapped file."""

from __future__ import annotations

import inspect
import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from holdfast.models.files_kind import shaped
from holdfast.models.records import Signature
from holdfast.system import logs
from holdfast.system.extras import require_extra
from holdfast.wire.errors import BadModel

Array = np.ndarray[Any, Any]
log = logs.get(__name__)


class TorchServable:
    """A module in eval mode, without gradients. Inputs go by name where its `forward` has
    parameters of these names, else in the signature's order. `names`: those of its parameters, for
    what is no `nn.Module` of Python and cannot be asked, or is not to be set to eval mode."""

    def __init__(
        self,
        signature: Signature,
        module: Callable[..., Any],
        device: torch.device,
        names: Sequence[str] | None = None,
    ) -> None:
        if names is None and isinstance(module, nn.Module):
            names = forward_names(module.eval())
        self.module = module
        self._signature = signature
        self._device = device
        self._names = [spec.name for spec in signature.inputs]
        self._by_name = set(self._names) <= set(names or ())

    @classmethod
    def of(
        cls,
        signature: Signature,
        entry: Callable[..., Any],
        arguments: Mapping[str, Any],
        weights: Path,
        device: str | None,
    ) -> TorchServable:
        """Build the module with `entry(**arguments)`, and give it its weights."""
        chosen = chosen_device(device)
        load_file = require_extra("safetensors.torch", "serve").load_file
        # On the host this maps the file: the pages come when they are first used.
        tensors = load_file(str(weights), device=str(chosen))
        return cls(signature, built(entry, arguments, tensors, chosen), chosen)

    def predict(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        with torch.inference_mode():
            given = {name: self._tensor(inputs[name]) for name in self._names}
            result = self.module(**given) if self._by_name else self.module(*given.values())
            return shaped(self._signature, on_host(result))

    def close(self) -> None:
        del self.module
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _tensor(self, array: Array) -> torch.Tensor:
        # A module may write into what it is given; what came from the wire is not ours to change.
        plain = array if array.flags.writeable and array.flags.c_contiguous else array.copy()
        return torch.from_numpy(plain).to(self._device, non_blocking=True)


def chosen_device(device: str | None) -> torch.device:
    """The device that was named, or the first GPU that is there."""
    return torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))


def built(
    entry: Callable[..., Any],
    arguments: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    device: torch.device,
) -> nn.Module:
    """The module with these weights. First without memory: random numbers and room for weights that
    are replaced at once would cost more than all the rest. A module that cannot be built so, or
    that keeps tensors which are not among its weights, is built as ever."""
    ghosts = _Ghosts()
    try:
        with torch.device("meta"), ghosts:
            module = _module(entry(**arguments))
        module.load_state_dict(dict(tensors), strict=True, assign=True)
        if not ghosts.haunt(module):
            return module
    except BadModel:
        raise
    except Exception as error:
        log.debug("built with memory", reason=f"{type(error).__name__}: {error}")
    module = _module(entry(**arguments))
    module.load_state_dict(dict(tensors), strict=True, assign=True)
    return module.to(device)


def forward_names(module: nn.Module) -> list[str]:
    """The parameters of its `forward` that can be given by name."""
    try:
        known = inspect.signature(module.forward).parameters
    except (TypeError, ValueError):
        return []
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [name for name, parameter in known.items() if parameter.kind in named]


def on_host(result: Any) -> Any:
    """The same with arrays for tensors. numpy has no bfloat16: it becomes float32."""
    if isinstance(result, torch.Tensor):
        plain = result.detach()
        if plain.dtype == torch.bfloat16:
            plain = plain.float()
        return plain.cpu().numpy()
    if isinstance(result, Mapping):
        return {name: on_host(value) for name, value in result.items()}
    if isinstance(result, tuple | list):
        return tuple(on_host(value) for value in result)
    return result


def _module(made: Any) -> nn.Module:
    if not isinstance(made, nn.Module):
        raise BadModel(
            f"the entry of a torch model gave {type(made).__name__}, not an nn.Module",
            fix="name the class of the module, or a function that returns one; "
            "for anything else use the kind python",
        )
    return made


class _Ghosts(TorchFunctionMode):
    """Notes every tensor that is made without memory. Whichever of them lives on after the weights
    have come is kept somewhere by the module, and would be used."""

    def __init__(self) -> None:
        super().__init__()
        self._made: list[weakref.ref[torch.Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.is_meta:
            self._made.append(weakref.ref(made))
        return made

    def haunt(self, module: nn.Module) -> bool:
        """Whether the module still has one."""
        alive = (ref() for ref in self._made)
        held = itertools.chain(module.parameters(), module.buffers(), alive)
        return any(tensor is not None and tensor.is_meta for tensor in held)
