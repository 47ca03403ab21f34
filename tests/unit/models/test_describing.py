"""Examples, signatures, differences and exports: what a version says of itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from holdfast.models import examples, making
from holdfast.models.describing import signature_of
from holdfast.models.differences import compared
from holdfast.models.examples import Example
from holdfast.models.exporting import export
from holdfast.models.loading import fetch
from holdfast.models.records import EXAMPLE, ONNX, WEIGHTS, ModelKind, Signature, TensorSpec
from holdfast.storage import Blobs
from holdfast.wire.errors import BadModel, Corrupt, Occupied, Usage
from tests.unit.models.stage import (
    code,
    draft_of,
    linear_weights,
    onnx_file,
    some,
    torch_draft,
    version_of,
    weights_file,
)

Array = np.ndarray[Any, Any]


# --- examples -------------------------------------------------------------------------------------


def test_an_example_comes_back_as_it_was_written(tmp_path: Path) -> None:
    inputs = {
        "x.y": some(),
        "text": np.array([["a", "bé"], ["", "d"]], np.object_),
        "flag": np.array([True, False]),
        "turned": np.arange(6, dtype=np.int16).reshape(2, 3).T,
    }
    example = Example(inputs, {"half": np.ones((2, 1), np.float16), "count": np.array(3)})
    (tmp_path / EXAMPLE).write_bytes(making.example_file(example))
    found = examples.read(tmp_path)
    assert found is not None
    assert found.inputs["text"].tolist() == [[b"a", "bé".encode()], [b"", b"d"]]
    for name in ("x.y", "flag", "turned"):
        np.testing.assert_array_equal(found.inputs[name], inputs[name])
        assert found.inputs[name].dtype == inputs[name].dtype
    assert found.outputs["half"].dtype == np.float16
    assert found.outputs["count"].shape == ()
    (tmp_path / EXAMPLE).write_bytes(b"something else")
    with pytest.raises(Corrupt):
        examples.read(tmp_path)
    (tmp_path / EXAMPLE).unlink()
    assert examples.read(tmp_path) is None


def test_the_signature_is_what_the_example_shows() -> None:
    example = Example({"x": some(3, 4)}, {"y": np.zeros((3, 2)), "name": np.array(["a"] * 3)})
    assert signature_of([example]) == Signature(
        (TensorSpec("x", "FP32", (-1, 4)),),
        (TensorSpec("y", "FP64", (-1, 2)), TensorSpec("name", "BYTES", (-1,), text=True)),
        batches=True,
    )


@pytest.mark.parametrize(
    ("predict", "batches"),
    [
        (lambda x: x * 2, True),
        (lambda x: x - x.mean(0), False),
        (lambda x: x.reshape(3, 4) * 2, False),
        (lambda x: x.sum(0), False),
    ],
    ids=["rows alone", "rows together", "three rows only", "one answer for all"],
)
def test_rows_are_computed_together_only_where_each_stands_for_itself(
    predict: Any, batches: bool
) -> None:
    x = some(3, 4)

    def all_of_it(inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {"y": predict(inputs["x"])}

    example = Example({"x": x}, {"y": predict(x)})
    signature = signature_of([example], all_of_it)
    assert signature.batches is batches
    assert signature.inputs[0].shape == ((-1, 4) if batches else (3, 4))


def test_a_type_that_cannot_be_served_is_named() -> None:
    with pytest.raises(Usage, match="'x' has the type complex64"):
        signature_of([Example({"x": np.zeros(2, np.complex64)}, {})])


@pytest.mark.parametrize(
    ("datatype", "expected", "found", "words"),
    [
        ("FP32", [1.0, 100.0], [1.0, 100.05], ""),
        ("FP32", [1.0, 100.0], [1.0, 101.0], "off by 1"),
        ("FP32", [1.0, np.nan], [1.0, 2.0], "NaNs at other places"),
        ("FP32", [np.nan, np.inf], [np.nan, np.inf], ""),
        ("FP64", [1.0], [1.0001], "off by"),
        ("FP32", [1.0], [1.0, 1.0], "its shape is [2], not [1]"),
        ("INT64", [1, 2], [1, 3], "1 of 2 elements differ"),
        ("FP32", [1.0], None, "it is missing"),
    ],
)
def test_what_differs_more_than_rounding_does_is_said(
    datatype: str, expected: list[float], found: list[float] | None, words: str
) -> None:
    signature = Signature((), (TensorSpec("y", datatype, (-1,)),))
    given = {} if found is None else {"y": np.array(found)}
    if not words:
        examples.compare("it", signature, {"y": np.array(expected)}, given)
        return
    with pytest.raises(BadModel) as refused:
        examples.compare("it", signature, {"y": np.array(expected)}, given)
    assert words in refused.value.why


def test_inputs_are_read_from_npz_and_json(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=some())
    assert making.read_inputs(tmp_path / "a.npz")["x"].dtype == np.float32
    (tmp_path / "a.json").write_text('{"x": [[1, 2.5]], "n": [1], "t": ["a"]}')
    found = making.read_inputs(tmp_path / "a.json")
    assert {
        name: signature_of([Example({name: array}, {})]).inputs[0].datatype
        for name, array in found.items()
    } == {"x": "FP32", "n": "INT64", "t": "BYTES"}
    for name, text in (("b.json", "[1]"), ("c.json", "{"), ("d.txt", ""), ("e.npz", "zip")):
        (tmp_path / name).write_text(text)
        with pytest.raises(Usage):
            making.read_inputs(tmp_path / name)


# --- differences ----------------------------------------------------------------------------------


def test_two_versions_differ_in_what_was_changed_and_in_nothing_else(
    blobs: Blobs, tmp_path: Path
) -> None:
    before = torch_draft(blobs, tmp_path / "one", scale=2, metrics={"loss": 0.5, "old": 1.0})
    tensors = linear_weights()
    tensors["layer.bias"] = tensors["layer.bias"] + 0.25
    after = torch_draft(blobs, tmp_path / "two", scale=3, metrics={"loss": 0.25})
    after = replace(after, files={**after.files, WEIGHTS: weights_file(tensors)})
    one = replace(version_of(blobs, before, 1), metrics=before.metrics)
    two = replace(version_of(blobs, after, 2), metrics=after.metrics, arguments={"width": 4})
    folders = [fetch(each, blobs, tmp_path / "cache") for each in (one, two)]
    found = compared(one, two, *folders)
    assert found.facts == {"arguments": ({}, {"width": 4})}
    assert found.metrics == {"loss": (0.5, 0.25), "old": (1.0, None)}
    assert found.code == {"helper.py": "changed"}
    assert found.files == {EXAMPLE: "changed", WEIGHTS: "changed"}
    (change,) = found.tensors
    assert change.name == "layer.bias"
    assert change.largest == pytest.approx(0.25, abs=1e-6)
    assert found.same_tensors == 1
    assert compared(one, one, folders[0], folders[0]).none


def test_tensors_of_other_shapes_and_types_are_told_apart(tmp_path: Path) -> None:
    import torch

    from holdfast.models.differences import changes, tensors

    one, two = tmp_path / "one", tmp_path / "two"
    base = {"same": torch.ones(3), "bf": torch.ones(2, dtype=torch.bfloat16)}
    one.write_bytes(weights_file({**base, "shape": torch.ones(2), "gone": torch.ones(1)}))
    two.write_bytes(
        weights_file({**base, "bf": base["bf"] * 3, "shape": torch.ones(4), "new": torch.ones(1)})
    )
    found = {change.name: change for change in changes(one, two)}
    assert {name: change.what for name, change in found.items()} == {
        "bf": "changed",
        "gone": "gone: F32 [1]",
        "new": "new: F32 [1]",
        "shape": "F32 [2] became F32 [4]",
    }
    assert found["bf"].largest == 2.0
    assert found["bf"].relative == pytest.approx(2.0)
    two.write_bytes(b"12345678short")
    with pytest.raises(Corrupt):
        tensors(two)


# --- exports --------------------------------------------------------------------------------------


def test_an_export_is_loaded_by_doing_what_its_readme_says(blobs: Blobs, tmp_path: Path) -> None:
    version = version_of(blobs, torch_draft(blobs, tmp_path / "code"))
    target = tmp_path / "out"
    assert export(version, blobs, target) == [
        "README.txt",
        "code",
        EXAMPLE,
        "version.json",
        WEIGHTS,
    ]
    assert json.loads((target / "version.json").read_text())["model"] == "digits"
    assert sorted(load_file(target / WEIGHTS)) == ["layer.bias", "layer.weight"]
    lines = (target / "README.txt").read_text().partition("To load it:")[2].splitlines()
    script = "\n".join(line.strip() for line in lines)
    script += "\nimport torch\nprint(tuple(model(torch.ones(5, 4)).shape))\n"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=target, capture_output=True, text=True, check=False
    )
    assert done.stdout == "(5, 2)\n", done.stderr
    with pytest.raises(Occupied):
        export(version, blobs, target)


@pytest.mark.parametrize("kind", [ModelKind.PYTHON, ModelKind.FUNCTION, ModelKind.ONNX])
def test_every_kind_can_be_exported(blobs: Blobs, tmp_path: Path, kind: ModelKind) -> None:
    folder = code(
        tmp_path / "code",
        {
            "it.py": """
                def f(inputs): return inputs["x"]
                class C:
                    predict = staticmethod(f)
            """
        },
    )
    entry = {ModelKind.PYTHON: "it:C", ModelKind.FUNCTION: "it:f", ModelKind.ONNX: ""}[kind]
    files = {ONNX: onnx_file()} if kind is ModelKind.ONNX else {}
    draft = draft_of(blobs, folder, kind, entry, {"x": some()}, files=files)
    written = export(version_of(blobs, draft), blobs, tmp_path / "out")
    assert ("code" in written) is (kind is not ModelKind.ONNX)
    assert "To load it" in (tmp_path / "out" / "README.txt").read_text()
