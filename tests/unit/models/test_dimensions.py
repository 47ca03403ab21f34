"""Any dimension may vary: shown by several examples, or said by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.models.describing import describe, dynamic_of, spoken
from holdfast.models.loading import check_example, fetch, load
from holdfast.models.records import ModelKind, Signature, TensorSpec
from holdfast.serve.protocol.rest import Fitting
from holdfast.serve.replica.batching import shape_of
from holdfast.storage import Blobs
from holdfast.train import publishing
from holdfast.wire.errors import BadModel, Usage
from tests.unit.models.stage import code, draft_of, version_of

Arrays = Mapping[str, np.ndarray[Any, Any]]


def tokens(rows: int, length: int) -> np.ndarray[Any, Any]:
    return np.arange(rows * length, dtype=np.int64).reshape(rows, length) % 7


def embed(inputs: Arrays) -> dict[str, Any]:
    ids = inputs["ids"]
    if ids.shape[1] > 12:
        raise ValueError(f"{ids.shape[1]} tokens are too many")
    each = np.stack([ids, ids * 2, ids * 3], axis=-1).astype(np.float32)
    return {"each": each, "sum": each.sum(1)}


def test_what_differs_between_examples_is_free_and_nothing_else() -> None:
    signature, known = describe([{"ids": tokens(2, 5)}, {"ids": tokens(2, 3)}], embed)
    assert signature == Signature(
        (TensorSpec("ids", "INT64", (-1, -1)),),
        (TensorSpec("each", "FP32", (-1, -1, 3)), TensorSpec("sum", "FP32", (-1, 3))),
        batches=True,
    )
    assert [example.outputs["each"].shape for example in known] == [(2, 5, 3), (2, 3, 3)]


@pytest.mark.parametrize("size", [5, 8], ids=["doubled", "halved, since twice is too many"])
def test_a_dimension_that_was_said_to_vary_is_tried_with_another_size(size: int) -> None:
    signature, _ = describe([{"ids": tokens(2, size)}], embed, dynamic_of({"ids": {1: "tokens"}}))
    assert signature.inputs == (TensorSpec("ids", "INT64", (-1, -1), dims=("", "tokens")),)
    assert signature.outputs[0].shape == (-1, -1, 3)


def test_a_dimension_that_the_model_cannot_vary_is_not_believed() -> None:
    weights = np.ones((5, 2), np.float32)
    with pytest.raises(BadModel, match="does not take other sizes"):
        describe([{"x": np.ones((3, 5), np.float32)}], lambda given: {"y": given["x"] @ weights},
                 dynamic_of({"x": 1}))  # fmt: skip


def test_rows_may_be_free_without_standing_for_themselves() -> None:
    def centred(inputs: Arrays) -> dict[str, Any]:
        return {"y": inputs["x"] - inputs["x"].mean(0)}

    sizes = [{"x": np.random.default_rng(n).normal(size=(n, 4))} for n in (3, 5)]
    signature, _ = describe(sizes, centred)
    assert not signature.batches
    assert signature.inputs[0].shape == (-1, 4)


def test_what_is_said_of_dimensions_is_read() -> None:
    dim = torch.export.Dim("tokens", max=9)
    assert dynamic_of({"x": {1: dim}, "y": (0, 2), "z": 1}) == {
        "x": {1: "tokens"},
        "y": {0: "", 2: ""},
        "z": {1: ""},
    }
    assert dynamic_of({"x": {1: torch.export.Dim.DYNAMIC}}) == {"x": {1: ""}}
    assert spoken(["x:1,3", "a:b:0=rows", "x:2=t"]) == {
        "x": {1: "", 3: "", 2: "t"},
        "a:b": {0: "rows"},
    }
    for word in ("x", "x:", "x:one", ":1"):
        with pytest.raises(Usage, match="--dynamic"):
            spoken([word])
    for odd in ({"x": "1"}, {"x": {"one": 1}}, [1]):
        with pytest.raises(Usage):
            dynamic_of(odd)


@pytest.mark.parametrize(
    ("given", "dynamic", "words"),
    [
        ([{"ids": tokens(2, 3)}, {"other": tokens(2, 3)}], {}, "example 2 has the inputs other"),
        ([{"ids": tokens(2, 3)}, {"ids": tokens(2, 3)[0]}], {}, "example 2 has 'ids' as int64"),
        ([{"ids": tokens(2, 3)}], {"idz": {1: ""}}, "there is no tensor 'idz'"),
        ([{"ids": tokens(2, 3)}], {"ids": {2: ""}}, "'ids' has no dimension 2"),
        ([{"ids": tokens(2, 3)}] * 9, {}, "9 examples were given"),
    ],
)
def test_examples_that_do_not_go_together_are_refused(
    given: list[Arrays], dynamic: Any, words: str
) -> None:
    with pytest.raises(Usage, match=words):
        describe(given, embed, dynamic)


def test_dimensions_of_one_name_have_one_size_in_a_request() -> None:
    signature = Signature(
        (
            TensorSpec("ids", "INT64", (-1, -1), dims=("", "tokens")),
            TensorSpec("mask", "BOOL", (-1, -1), dims=("", "tokens")),
        ),
        (),
    )
    fitting = Fitting(signature, "it")
    good = {"ids": tokens(2, 5), "mask": np.ones((2, 5), bool)}
    fitting.complete(good, 2)
    with pytest.raises(Usage) as refused:
        fitting.complete({**good, "mask": np.ones((2, 4), bool)}, 2)
    assert "dimension 1 of input 'mask' is 4" in str(refused.value)
    assert "'tokens', which is 5 in input 'ids'" in str(refused.value)


def test_only_requests_of_equal_other_dimensions_go_together() -> None:
    keys = [shape_of({"ids": tokens(*size)})[0] for size in ((1, 5), (3, 5), (1, 4))]
    assert keys[0] == keys[1] != keys[2]


def test_each_example_of_a_version_is_compared_when_it_is_loaded(
    blobs: Blobs, tmp_path: Path
) -> None:
    text = """
        import numpy as np
        WRONG = {wrong}
        def f(inputs):
            x = inputs["x"]
            return {{"y": x * (3 if WRONG and x.shape[1] == 2 else 2)}}
    """
    folder = code(tmp_path / "f", {"f.py": text.format(wrong=False)})
    given: list[Mapping[str, Any]] = [{"x": np.ones((2, size), np.float32)} for size in (4, 2)]
    draft = draft_of(blobs, folder, ModelKind.FUNCTION, "f:f", given)
    assert "example-2.safetensors" in draft.files
    version = version_of(blobs, draft)
    where = fetch(version, blobs, tmp_path / "cache")
    check_example(load(version, where), version, where)
    (where / "code" / "f.py").resolve().write_text(
        (where / "code" / "f.py").read_text().replace("WRONG = False", "WRONG = True")
    )
    with pytest.raises(BadModel, match="does not give what its example says"):
        check_example(load(version, where), version, where)


def test_a_module_that_is_trained_may_vary_in_any_dimension() -> None:
    class Sums(nn.Module):
        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return (ids * mask).cumsum(1)

    short, long = ((torch.ones(2, n), torch.ones(2, n)) for n in (3, 5))
    signature, known = publishing.describe_module(Sums(), [short, long])
    assert [spec.shape for spec in signature.inputs] == [(-1, -1), (-1, -1)]
    assert (signature.outputs[0].shape, len(known)) == ((-1, -1), 2)
    said, _ = publishing.describe_module(Sums(), short, {"ids": {1: "t"}, "mask": {1: "t"}})
    assert said.inputs[1].dims == ("", "t")
    assert said.outputs[0].shape == (-1, -1)
