"""TorchScript archives (`torch.jit.save`).

What runs when one is loaded: torch's own reader, in C++. It knows tensors and plain values, and no
Python objects; `data.pkl` in it is not given to Python's pickle. Its code is TorchScript, which is
computed and cannot do what a Python program can. It is still a program of whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from holdfast.models.files_kind import Gathered, KnownFiles, members, wrong
from holdfast.models.records import ModelKind, Version
from holdfast.models.torch_kind import TorchServable, chosen_device

FILE: Final = "model.pt"
_WHAT: Final = "a TorchScript archive"
_FIX: Final = "save it with torch.jit.save(torch.jit.script(model), FILE)"


def gather(path: Path) -> Gathered:
    names = {name.partition("/")[2] for name in members(path, _WHAT, _FIX)}
    if "constants.pkl" not in names or not any(name.startswith("code/") for name in names):
        why = "it has no code of TorchScript"
        if "data.pkl" in names:
            why = "torch.save wrote it: that is a pickle"
        fix = f"{_FIX}; or publish weights as safetensors with the code that builds the module"
        raise wrong(path, _WHAT, why, fix)
    return Gathered(ModelKind.TORCHSCRIPT, {FILE: path})


def load(version: Version, folder: Path, device: str | None) -> TorchServable:
    chosen = chosen_device(device)
    module = torch.jit.load(str(folder / FILE), map_location=chosen)
    module.eval()
    names = [each.name for each in module.forward.schema.arguments[1:]]
    return TorchServable(version.signature, module, chosen, names)


def known(_folder: Path, _arguments: Mapping[str, Any]) -> KnownFiles:
    return KnownFiles()


def lines(_version: Version) -> list[str]:
    return ["import torch", f'model = torch.jit.load("{FILE}")', "model.eval()"]
