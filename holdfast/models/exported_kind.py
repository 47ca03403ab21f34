"""Programs of `torch.export` (`.pt2`).

Their weights are plain bytes, but the format also has places for pickles, and `torch.export.load`
would run those. So an archive is looked through first: what is a pickle must be one that torch's
weights-only reader takes, which knows tensors and plain values. Torch itself says of the rest (the
graph as JSON): never load what you do not trust.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch.export.passes import move_to_device_pass

from holdfast.models.files_kind import Gathered, KnownFiles, members, wrong
from holdfast.models.records import ModelKind, Version
from holdfast.models.torch_kind import TorchServable, chosen_device, on_host
from holdfast.wire.errors import BadModel

FILE: Final = "model.pt2"
_WHAT: Final = "a program of torch.export"
_FIX: Final = "save it with torch.export.save(torch.export.export(model, inputs), FILE)"
_PAYLOADS: Final = ("data/weights/", "data/constants/")
_SAMPLES: Final = "data/sample_inputs/"
_COMPILED: Final = "data/aotinductor/"


def gather(path: Path) -> Gathered:
    return Gathered(ModelKind.EXPORTED, {FILE: path}, pickled=_pickled(path))


def load(version: Version, folder: Path, device: str | None) -> TorchServable:
    program = _program(folder / FILE)
    chosen = chosen_device(device)
    if chosen.type != "cpu":
        program = move_to_device_pass(program, chosen)
    positional, by_name = _inputs(program)
    module = program.module()

    def call(**given: torch.Tensor) -> Any:
        named = {name: given[name] for name in by_name}
        return module(*(given[name] for name in positional), **named)

    return TorchServable(version.signature, call, chosen, [*positional, *by_name])


def known(folder: Path, _arguments: Mapping[str, Any]) -> KnownFiles:
    program = _program(folder / FILE)
    positional, by_name = _inputs(program)
    given = [node for node in program.graph.nodes if node.op == "placeholder"]
    shapes = {node.name: node.meta["val"].shape for node in given}
    order = program.graph_signature.user_inputs
    dynamic: dict[str, dict[int, str]] = {}
    for name, node in zip([*positional, *by_name], order, strict=True):
        free = {
            axis: str(size) if str(size).isidentifier() else ""
            for axis, size in enumerate(shapes[node])
            if not isinstance(size, int)
        }
        if free:
            dynamic[name] = free
    arguments, named = _samples(program)
    values = [*arguments, *(named[name] for name in by_name)] if arguments or named else []
    inputs = dict(zip([*positional, *by_name], on_host(tuple(values)), strict=True))
    return KnownFiles(inputs if values else None, dynamic)


def lines(_version: Version) -> list[str]:
    return ["import torch", f'program = torch.export.load("{FILE}")', "model = program.module()"]


def _program(path: Path) -> Any:
    try:
        return torch.export.load(str(path))
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise BadModel(
            f"{path.name} cannot be loaded", why=f"{type(error).__name__}: {first}", fix=_FIX
        ) from error


def _samples(program: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The inputs that it was exported with."""
    found: tuple[tuple[Any, ...], dict[str, Any]] = program.example_inputs or ((), {})
    return found


def _inputs(program: Any) -> tuple[list[str], list[str]]:
    """The names of its inputs: those that are given in order, and those by name."""
    arguments, by_name = _samples(program)
    order = [str(name) for name in program.graph_signature.user_inputs]
    flat = [*arguments, *by_name.values()]
    if len(order) != len(flat) or not all(isinstance(each, torch.Tensor) for each in flat):
        raise BadModel(
            "the program takes other inputs than tensors",
            why=f"its inputs are {', '.join(order)}",
            fix="export a module whose forward takes tensors, and give export() example inputs",
        )
    return order[: len(arguments)], [str(name) for name in by_name]


def _pickled(path: Path) -> bool:
    """Whether loading it would run a pickle that is more than tensors and plain values."""
    roots = {name.partition("/")[0] for name in members(path, _WHAT, _FIX)}
    try:
        # By torch's own reader: two readers may see two archives in one file.
        reader = torch._C.PyTorchFileReader(str(path))
        names = [str(name) for name in reader.get_all_records()]
        runs = any(_runs(reader, name) for name in names)
    except Exception as error:
        raise wrong(path, _WHAT, str(error).partition("\n")[0], _FIX) from error
    if len(roots) != 1 or "archive_format" not in names or "models/model.json" not in names:
        raise wrong(path, _WHAT, "it has no models/model.json", _FIX)
    if any(name.startswith(_COMPILED) for name in names):
        raise wrong(path, _WHAT, "it has compiled machine code (AOTInductor)", _FIX)
    return runs


def _runs(reader: Any, name: str) -> bool:
    """Whether a record of the archive is a pickle that does more than it should."""
    if name.startswith(_SAMPLES):
        return not _is_plain(reader.get_record(name))
    if not name.startswith(_PAYLOADS):
        return False
    if not name.endswith("_config.json"):
        # As older versions of torch wrote them: all weights in one pickle.
        return name.endswith(".pt")
    for payload in json.loads(reader.get_record(name))["config"].values():
        place = str(payload["path_name"])
        if place.startswith(("custom_obj_", "opaque_obj_")):
            return True
        if payload.get("use_pickle") and not _is_plain(
            reader.get_record(name.rpartition("/")[0] + "/" + place)
        ):
            return True
    return False


def _is_plain(data: bytes) -> bool:
    if not data:
        return True
    try:
        torch.load(io.BytesIO(data), weights_only=True)
    except Exception:  # torch raises what it likes for a pickle that it does not take
        return False
    return True
