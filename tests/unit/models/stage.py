"""Small models of every kind, as files, and as drafts of versions."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper
from safetensors.torch import save

from holdfast.models.describing import signature_of
from holdfast.models.drafts import VersionDraft
from holdfast.models.examples import Example
from holdfast.models.making import Recipe, described, example_file, example_files
from holdfast.models.records import EXAMPLE, WEIGHTS, ModelKind, Version
from holdfast.models.registry import Registry
from holdfast.storage import Blobs, bundles, put_part

NET = """
    import torch
    from torch import nn

    import helper


    class Net(nn.Module):
        def __init__(self, width=4):
            super().__init__()
            self.layer = nn.Linear(width, 2)

        def forward(self, x):
            return self.layer(x) * helper.SCALE
"""


def code(folder: Path, files: Mapping[str, str]) -> Path:
    """A folder with these modules."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return folder


def linear_weights(seed: int = 0, width: int = 4, prefix: str = "layer.") -> dict[str, Any]:
    chance = torch.Generator().manual_seed(seed)
    return {
        f"{prefix}weight": torch.randn(2, width, generator=chance),
        f"{prefix}bias": torch.randn(2, generator=chance),
    }


def some(rows: int = 3, width: int = 4) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).normal(size=(rows, width)).astype(np.float32)


def weights_file(tensors: Mapping[str, torch.Tensor]) -> bytes:
    return save(dict(tensors))


def torch_draft(
    blobs: Blobs, folder: Path, *, scale: int = 2, seed: int = 0, model: str = "digits", **more: Any
) -> VersionDraft:
    """A torch model whose `helper.SCALE` is `scale`."""
    place = code(folder, {"net.py": NET, "helper.py": f"SCALE = {scale}\n"})
    tensors = linear_weights(seed)
    x = some()
    y = (torch.from_numpy(x) @ tensors["layer.weight"].T + tensors["layer.bias"]) * scale
    example = Example({"x": x}, {"output": y.numpy()})
    return VersionDraft(
        model=model,
        kind=ModelKind.TORCH,
        signature=signature_of([example]),
        files={WEIGHTS: weights_file(tensors), EXAMPLE: example_file(example)},
        bundle=bundles.push(blobs, place).digest,
        entry="net:Net",
        **more,
    )


def published(registry: Registry, blobs: Blobs, tmp_path: Path, count: int) -> list[Version]:
    """So many versions of `digits`."""
    drafts = [torch_draft(blobs, tmp_path / "code", seed=seed) for seed in range(count)]
    return [registry.publish(draft) for draft in drafts]


def draft_of(
    blobs: Blobs,
    folder: Path,
    kind: ModelKind,
    entry: str,
    inputs: Mapping[str, Any] | list[Mapping[str, Any]],
    *,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
    files: Mapping[str, bytes] | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> VersionDraft:
    """A draft that was loaded once, as `holdfast models publish` does it. `folder` has the code."""
    held = folder.with_name(f"{folder.name}-files")
    held.mkdir()
    for name, data in (files or {}).items():
        (held / name).write_bytes(data)
    recipe = Recipe("it", kind, held, folder, entry, arguments or {})
    every = inputs if isinstance(inputs, list) else [inputs]
    signature, known = described(recipe, [dict(each) for each in every], dynamic or {})
    return VersionDraft(
        model="it",
        kind=kind,
        signature=signature,
        files={**(files or {}), **example_files(known)},
        bundle="" if kind is ModelKind.ONNX else bundles.push(blobs, folder).digest,
        entry=entry,
        arguments=arguments or {},
    )


def version_of(blobs: Blobs, draft: VersionDraft, number: int = 1) -> Version:
    """The version that it would become, without a plane; its parts are in the store."""
    parts = {}
    for name, content in draft.files.items():
        assert isinstance(content, bytes)
        parts[name] = put_part(blobs, content)
    return Version(
        model=draft.model,
        number=number,
        kind=draft.kind,
        signature=draft.signature,
        files=parts,
        publication=f"sha256:{number:064x}",
        published_s=0.0,
        bundle=draft.bundle,
        entry=draft.entry,
        arguments=draft.arguments,
    )


def onnx_echo() -> bytes:
    """`y = text`, for texts."""
    text = helper.make_tensor_value_info("text", TensorProto.STRING, ["rows"])
    y = helper.make_tensor_value_info("y", TensorProto.STRING, ["rows"])
    return _onnx("echo", [helper.make_node("Identity", ["text"], ["y"])], text, y)


def onnx_file(factor: float = 2.0) -> bytes:
    """`y = x * factor`, for any number of rows of four."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 4])
    held = helper.make_tensor("factor", TensorProto.FLOAT, [1], [factor])
    node = helper.make_node("Mul", ["x", "factor"], ["y"])
    return _onnx("double", [node], x, y, held)


def _onnx(name: str, nodes: list[Any], x: Any, y: Any, *held: Any) -> bytes:
    graph = helper.make_graph(nodes, name, [x], [y], list(held))
    opsets = [helper.make_opsetid("", 13)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.checker.check_model(made)
    data: bytes = made.SerializeToString()
    return data
