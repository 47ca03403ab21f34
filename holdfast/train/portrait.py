"""What a version says of a live module: its example, its signature, and how to build it again."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from holdfast.models import describing, examples
from holdfast.models.examples import Example
from holdfast.models.records import Signature
from holdfast.models.torch_kind import TorchServable, forward_names, on_host
from holdfast.storage.bundles import FILES
from holdfast.wire.errors import Usage


def taken(
    model: nn.Module, given: Any, dynamic: Any = None
) -> tuple[Signature, tuple[Example, ...]]:
    """The examples with what the module itself makes of them, in eval mode; and its signature."""
    names = forward_names(model)
    every = given if isinstance(given, list) else [given]
    inputs = [examples.named(on_host(each), names, "inputs") for each in every]
    if not inputs:
        raise Usage("example=[] has no example", fix="give one batch of inputs, or several")
    takes = describing.signature_of([Example(inputs[0], {})]).inputs
    with _resting(model):
        servable = TorchServable(Signature(takes, ()), model, device_of(model))
        return describing.describe(inputs, servable.predict, describing.dynamic_of(dynamic))


def entry_of(thing: Any, code: Path) -> str:
    """`[FOLDER/]MODULE:NAME` of a class or a function, as a replica finds it in the bundle."""
    name = getattr(thing, "__qualname__", "")
    module = getattr(thing, "__module__", "")
    if not name or not module or "<" in name:
        raise Usage(
            f"{name or repr(thing)} cannot be found again by its name",
            why="a replica imports it from your modules; this one lives inside a function",
            fix="move it to the top of a module, or give build= a function that is there",
        )
    folder, main = _script(code)
    module = main if module == "__main__" else module
    return f"{folder}/{module}:{name}" if folder else f"{module}:{name}"


def code_folder(bundle: str) -> Path:
    """Where the bundle that this process runs was unpacked: it began there, and may have left."""
    name = bundle.partition(":")[2]
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    for place in Path(script).absolute().parents if script else ():
        if place.name == FILES and place.parent.name == name:
            return place
    return Path.cwd()


def device_of(model: nn.Module) -> torch.device:
    """Where its first weight is."""
    first = next(iter(model.state_dict().values()), None)
    return first.device if isinstance(first, torch.Tensor) else torch.device("cpu")


@contextmanager
def chance_kept() -> Iterator[None]:
    """Random numbers go on afterwards as if nothing had been drawn."""
    plain, arrays = random.getstate(), np.random.get_state()
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = [torch.cuda.current_device()] if in_use else []
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(plain)
            np.random.set_state(arrays)


@contextmanager
def _resting(model: nn.Module) -> Iterator[None]:
    """Each of its modules goes back to the mode that it had before it became servable."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _script(code: Path) -> tuple[str, str]:
    """The script that runs, within the bundle: the folder that it imports from, and its module."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return "", str(spec.name)  # python -m MODULE
    path = Path(getattr(main, "__file__", "") or "").absolute()
    if not path.is_relative_to(code):
        return "", "__main__"
    inside = path.relative_to(code)
    folder = "" if str(inside.parent) == "." else inside.parent.as_posix()
    return folder, inside.stem
