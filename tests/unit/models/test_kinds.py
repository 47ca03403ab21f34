"""Classes, functions and ONNX files as models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from holdfast.models.loading import check_example, fetch, load
from holdfast.models.onnx_kind import onnx_signature
from holdfast.models.records import ONNX, ModelKind
from holdfast.storage import Blobs
from holdfast.wire.errors import BadModel
from tests.unit.models.stage import (
    code,
    draft_of,
    onnx_echo,
    onnx_file,
    some,
    version_of,
)


def test_a_class_with_load_and_predict_is_served_with_its_own_files(
    blobs: Blobs, tmp_path: Path
) -> None:
    folder = code(
        tmp_path / "words",
        {
            "words.py": """
                import helper
                class Words:
                    def load(self, folder, lower):
                        self.known = (folder / "words.txt").read_text().split()
                        self.lower = lower
                    def predict(self, inputs):
                        texts = [bytes(text).decode() for text in inputs["text"].flat]
                        if self.lower:
                            texts = [text.lower() for text in texts]
                        return helper.find(self.known, texts)
            """,
            "helper.py": """
                def find(known, texts):
                    return {"known": [text in known for text in texts], "text": texts}
            """,
        },
    )
    inputs = {"text": np.array([b"Fish", b"stone"], np.object_)}
    files = {"words.txt": b"fish bird\n"}
    draft = draft_of(
        blobs,
        folder,
        ModelKind.PYTHON,
        "words:Words",
        inputs,
        files=files,
        arguments={"lower": True},
    )
    assert [spec.datatype for spec in draft.signature.outputs] == ["BOOL", "BYTES"]
    assert draft.signature.batches
    version = version_of(blobs, draft)
    where = fetch(version, blobs, tmp_path / "cache")
    servable = load(version, where)
    check_example(servable, version, where)
    assert servable.predict(inputs)["known"].tolist() == [True, False]


def test_load_may_be_a_class_method_that_makes_the_object(blobs: Blobs, tmp_path: Path) -> None:
    folder = code(
        tmp_path / "made",
        {
            "made.py": """
                class Made:
                    def __init__(self, factor): self.factor = factor
                    @classmethod
                    def load(cls, folder, factor=2): return cls(factor)
                    def predict(self, inputs): return inputs["x"] * self.factor
            """
        },
    )
    draft = draft_of(
        blobs, folder, ModelKind.PYTHON, "made:Made", {"x": some()}, arguments={"factor": 3}
    )
    version = version_of(blobs, draft)
    servable = load(version, fetch(version, blobs, tmp_path / "cache"))
    np.testing.assert_array_equal(servable.predict({"x": some()})["output"], some() * 3)


def test_a_function_is_a_model(blobs: Blobs, tmp_path: Path) -> None:
    folder = code(
        tmp_path / "f", {"f.py": "def f(inputs, by=2):\n    return {'y': inputs['x'] * by}\n"}
    )
    draft = draft_of(
        blobs, folder, ModelKind.FUNCTION, "f:f", {"x": np.array([[1], [2]])}, arguments={"by": 5}
    )
    version = version_of(blobs, draft)
    servable = load(version, fetch(version, blobs, tmp_path / "cache"))
    assert servable.predict({"x": np.array([[3]])})["y"].tolist() == [[15]]


def test_an_onnx_file_needs_no_code(blobs: Blobs, tmp_path: Path) -> None:
    inputs = {"x": some()}
    draft = draft_of(
        blobs, tmp_path / "none", ModelKind.ONNX, "", inputs, files={ONNX: onnx_file(2.5)}
    )
    version = version_of(blobs, draft)
    folder = fetch(version, blobs, tmp_path / "cache")
    servable = load(version, folder)
    check_example(servable, version, folder)
    np.testing.assert_allclose(servable.predict(inputs)["y"], some() * 2.5)
    servable.close()
    (takes,) = onnx_signature(folder / ONNX).inputs
    assert takes == replace(draft.signature.inputs[0], dims=("rows", ""))


def test_an_onnx_file_takes_texts_as_they_come_from_the_wire(blobs: Blobs, tmp_path: Path) -> None:
    inputs = {"text": np.array([b"fish", "Bär".encode()], np.object_)}
    draft = draft_of(
        blobs, tmp_path / "none", ModelKind.ONNX, "", inputs, files={ONNX: onnx_echo()}
    )
    version = version_of(blobs, draft)
    folder = fetch(version, blobs, tmp_path / "cache")
    servable = load(version, folder)
    check_example(servable, version, folder)
    assert servable.predict(inputs)["y"].tolist() == ["fish", "Bär"]


def test_a_damaged_onnx_file_is_a_bad_model(blobs: Blobs, tmp_path: Path) -> None:
    draft = draft_of(
        blobs, tmp_path / "none", ModelKind.ONNX, "", {"x": some()}, files={ONNX: onnx_file()}
    )
    version = version_of(blobs, replace(draft, files={ONNX: b"not onnx"}))
    with pytest.raises(BadModel, match="cannot be loaded"):
        load(version, fetch(version, blobs, tmp_path / "cache"))
