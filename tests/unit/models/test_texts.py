"""Texts and bytes: a model sees the same type when it is published and when it is served."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from holdfast.models import drafts
from holdfast.models.loading import check_example, fetch, load
from holdfast.models.records import EXAMPLE, ModelKind, Signature, TensorSpec, Version
from holdfast.serve.protocol.messages import request_of
from holdfast.serve.protocol.rest import Codec, Fitting
from holdfast.serve.protocol.tensors import key_of, packed_bytes
from holdfast.serve.replica import bodies
from holdfast.storage import Blobs
from holdfast.wire import documents
from holdfast.wire.errors import BadModel, Usage
from holdfast.wire.proto import inference_pb2 as pb
from tests.unit.models.stage import code, draft_of, version_of

TYPES = """
    def f(inputs):
        kinds = {type(each) for each in inputs["t"].flat}
        (kind,) = kinds
        return {"same": inputs["t"], "kind": [kind.__name__] * len(inputs["t"])}
"""


def made(*elements: Any) -> np.ndarray[Any, Any]:
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array


@pytest.mark.parametrize(
    ("example", "kind"),
    [
        (np.array(["fish", "Bär"]), str),
        (made("fish", "Bär"), str),
        (np.array([b"fish", b"bird"]), bytes),
        (made(b"fish", b"\xff"), bytes),
    ],
    ids=["U", "str", "S", "bytes"],
)
def test_a_model_sees_one_type_when_it_is_published_and_when_it_is_served(
    blobs: Blobs, tmp_path: Path, example: np.ndarray[Any, Any], kind: type
) -> None:
    folder = code(tmp_path / "f", {"f.py": TYPES})
    draft = draft_of(blobs, folder, ModelKind.FUNCTION, "f:f", {"t": example})
    assert [spec.text for spec in draft.signature.inputs] == [kind is str]
    assert [spec.text for spec in draft.signature.outputs] == [kind is str, True]
    version = version_of(blobs, draft)
    assert documents.from_bytes("v", Version, documents.to_bytes(version)) == version
    where = fetch(version, blobs, tmp_path / "cache")
    servable = load(version, where)
    check_example(servable, version, where)
    for request in requests_of(version.signature, example):
        found = servable.predict(request.inputs)
        assert found["kind"].tolist() == [kind.__name__] * 2
        assert [type(each) for each in found["same"]] == [kind, kind]


def requests_of(signature: Signature, example: np.ndarray[Any, Any]) -> list[Any]:
    """The same request by every way in."""
    codec = Codec(signature, "it")
    held = [each.encode() if isinstance(each, str) else each for each in example.tolist()]
    raw = packed_bytes(made(*held))
    head = {"name": "t", "datatype": "BYTES", "shape": [len(held)]}
    sized = {"inputs": [{**head, "parameters": {"binary_data_size": len(raw)}}]}
    spelled = json.dumps(sized).encode()
    found = [codec.decode(spelled + raw, len(spelled))]
    for field in ("raw", "typed"):
        message = pb.ModelInferRequest(model_name="it")
        tensor = message.inputs.add(name="t", datatype="BYTES", shape=[len(held)])
        if field == "raw":
            message.raw_input_contents.append(raw)
        else:
            tensor.contents.bytes_contents.extend(held)
        found.append(request_of(message, codec.fitting))
    if all(not isinstance(each, bytes) or each.isascii() for each in example.tolist()):
        words = [each.decode() for each in held]
        body = {"inputs": [{**head, "data": words}]}
        found.append(codec.decode(json.dumps(body).encode()))
        found.append(bodies.decode(codec, json.dumps({"t": words}).encode())[0])
    return found


def test_equal_texts_are_equal_requests_whichever_way_they_came() -> None:
    signature = Signature((TensorSpec("t", "BYTES", (-1,), text=True),), ())
    record = Version("it", 1, ModelKind.FUNCTION, signature, {}, "sha256:0", 0.0)
    keys = {key_of(record, request) for request in requests_of(signature, made("Bär", ""))}
    assert len(keys) == 1


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_bytes_that_are_no_text_are_refused_where_the_model_takes_texts(
    shape: tuple[int, ...],
) -> None:
    fitting = Fitting(Signature((TensorSpec("t", "BYTES", shape, text=True),), ()), "it")
    message = pb.ModelInferRequest(model_name="it")
    size = [2, *([1] * (len(shape) - 1))]
    message.inputs.add(name="t", datatype="BYTES", shape=size)
    message.raw_input_contents.append(packed_bytes(made(b"a", b"\xff\xfe")))
    with pytest.raises(Usage, match="element 1 of input 't' is not UTF-8"):
        request_of(message, fitting)
    message.ClearField("raw_input_contents")
    message.inputs[0].contents.bytes_contents.extend([b"\xff", b"a"])
    with pytest.raises(Usage, match="element 0 of input 't' is not UTF-8"):
        request_of(message, fitting)


@pytest.mark.parametrize("text", [True, False, None])
def test_half_a_character_in_json_is_refused(text: bool | None) -> None:
    codec = Codec(Signature((TensorSpec("t", "BYTES", (-1,), text=text),), ()), "it")
    body = b'{"inputs": [{"name": "t", "datatype": "BYTES", "shape": [1], "data": ["\\ud800"]}]}'
    with pytest.raises(Usage):
        codec.decode(body)
    with pytest.raises((Usage, msgspec.DecodeError)):
        bodies.decode(codec, b'{"t": ["\\ud800"]}')


def test_a_record_that_does_not_say_goes_on_as_before(blobs: Blobs, tmp_path: Path) -> None:
    folder = code(tmp_path / "f", {"f.py": TYPES})
    draft = draft_of(blobs, folder, ModelKind.FUNCTION, "f:f", {"t": made(b"fish", b"bird")})
    version = version_of(blobs, draft)
    plain_record = json.loads(documents.to_bytes(version))
    for spec in (*plain_record["signature"]["inputs"], *plain_record["signature"]["outputs"]):
        del spec["text"], spec["dims"]
    old = documents.from_bytes("v", Version, json.dumps(plain_record).encode())
    where = fetch(old, blobs, tmp_path / "cache")
    servable = load(old, where)
    check_example(servable, old, where)
    for request in requests_of(old.signature, made("fish", "bird")):
        assert servable.predict(request.inputs)["kind"].tolist() == ["bytes", "bytes"]


def test_what_was_published_before_tensors_said_more_is_known_again(blobs: Blobs) -> None:
    signature = Signature((TensorSpec("x", "FP32", (-1, 4)),), (TensorSpec("y", "FP32", (-1,)),))
    draft = drafts.VersionDraft("m", ModelKind.FUNCTION, signature, {}, "sha256:1", "f:f")
    spelled = {
        "model": "m",
        "kind": "function",
        "entry": "f:f",
        "arguments": {},
        "files": {},
        "bundle": "sha256:1",
        "signature": {
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1]}],
            "batches": True,
        },
        "job": "",
        "step": None,
    }
    whole = json.dumps(spelled, sort_keys=True, separators=(",", ":")).encode()
    assert drafts.publication(draft, {}) == f"sha256:{hashlib.sha256(whole).hexdigest()}"


def test_texts_and_bytes_in_one_tensor_are_refused(blobs: Blobs, tmp_path: Path) -> None:
    folder = code(tmp_path / "f", {"f.py": TYPES})
    for mixed in (made("a", b"b"), made("a", 1), made(None, None)):
        with pytest.raises(Usage, match="input 't' has elements of"):
            draft_of(blobs, folder, ModelKind.FUNCTION, "f:f", {"t": mixed})
        (tmp_path / "f-files").rmdir()


def test_an_output_of_texts_that_is_no_text_fails_the_request_with_a_sentence(
    blobs: Blobs, tmp_path: Path
) -> None:
    text = "def f(inputs):\n    return {'t': inputs['t']}\n"
    folder = code(tmp_path / "f", {"f.py": text})
    draft = draft_of(blobs, folder, ModelKind.FUNCTION, "f:f", {"t": made(b"a", b"b")})
    (spec,) = draft.signature.outputs
    told = replace(draft.signature, outputs=(replace(spec, text=True),))
    files = {name: held for name, held in draft.files.items() if name != EXAMPLE}
    version = version_of(blobs, replace(draft, signature=told, files=files))
    servable = load(version, fetch(version, blobs, tmp_path / "cache"))
    assert servable.predict({"t": made(b"a")})["t"].tolist() == ["a"]
    with pytest.raises(BadModel, match="output 't' is not of texts"):
        servable.predict({"t": made(b"\xff")})
