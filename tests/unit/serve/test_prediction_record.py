"""Records of predictions: what is sampled, redacted and set aside, and that readers get it back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from holdfast.models.datatypes import NUMPY
from holdfast.serve.prediction_record import (
    PREDICTION_KEYS_MAX,
    PREDICTION_LIST_ELEMENTS_MAX,
    PREDICTION_RECORD_BYTES_MAX,
    ROUTED,
    BlobReference,
    FirstOfEach,
    Prediction,
    RecordWriter,
    array_of,
    blobs_of,
    id_of,
    is_sampled,
    read,
    size_of,
    to_blobs,
)
from holdfast.serve.protocol.tensors import InferAnswer, InferRequest
from holdfast.serve.records import PredictionPolicy
from holdfast.wire.errors import Corrupt, Usage

ON = PredictionPolicy(topic=True)
NUMBERS = [dtype for name, dtype in NUMPY.items() if name != "BYTES"]
SHAPES = st_numpy.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6)
ARRAYS = st.sampled_from(NUMBERS).flatmap(lambda dtype: st_numpy.arrays(dtype, SHAPES))
TEXTS = st.lists(st.binary(max_size=40) | st.text(max_size=20).map(str.encode), max_size=12)
SIZES = st.dictionaries(st.text(min_size=1, max_size=3), st.integers(0, 1_000), max_size=8)
IDS = st.uuids().map(str) | st.text(min_size=1)


class Store:
    """A blob store, as far as records need one."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    def put(self, data: bytes | bytearray | memoryview) -> BlobReference:
        held = bytes(data)
        digest = hashlib.sha256(held).hexdigest()
        self.blobs[digest] = held
        return BlobReference(digest, digest, len(held))


def asked(inputs: Mapping[str, Any], **more: Any) -> InferRequest:
    return InferRequest("m", 3, more.pop("id", ""), dict(inputs), **more)


def answered(outputs: Mapping[str, Any]) -> InferAnswer:
    return InferAnswer("m", 3, "", dict(outputs))


def texts(elements: list[bytes]) -> Any:
    array = np.empty(len(elements), object)
    array[:] = elements
    return array


def recorded(
    request: InferRequest, answer: InferAnswer, policy: PredictionPolicy = ON, *, store: Store
) -> Prediction:
    """Written, and read as JSON."""
    return read(value_of(request, answer, policy, store=store))


def value_of(
    request: InferRequest, answer: InferAnswer, policy: PredictionPolicy = ON, *, store: Store
) -> bytes:
    """Twice: what a writer remembers changes nothing."""
    writer, blobs = RecordWriter("s", 7, policy), blobs_of(request, answer, policy)
    first, second = (
        writer.write(request, answer, id_of(request), 1.5, 0.25, blobs, store.put) for _ in range(2)
    )
    assert first == second
    return first


# --- sampling -------------------------------------------------------------------------------------


@given(IDS, st.floats(0, 1), st.floats(0, 1))
def test_who_belongs_to_a_share_belongs_to_a_larger_one(
    request_id: str, one: float, other: float
) -> None:
    low, high = sorted((one, other))
    assert is_sampled(request_id, low) <= is_sampled(request_id, high)
    assert is_sampled(request_id, 1.0) and not is_sampled(request_id, 0.0)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_a_share_is_that_share_of_ids_that_count_up(share: float) -> None:
    found = sum(is_sampled(str(number), share) for number in range(20_000))
    assert abs(found - 20_000 * share) < 5 * (20_000 * share * (1 - share)) ** 0.5


def test_every_process_and_machine_samples_the_same_requests() -> None:
    """Written down once: a hash that changes would record other tries of a request."""
    ids = [f"request-{number}" for number in range(40)]
    found = [int(one[8:]) for one in ids if is_sampled(one, 0.3)]
    assert found == [0, 13, 21, 24, 27, 34, 35, 37, 38]


# --- what goes to blobs ---------------------------------------------------------------------------


@given(SIZES, st.integers(0, 1_000), st.integers(0, 3_000))
def test_what_is_large_goes_to_blobs_and_the_rest_fits(
    sizes: dict[str, int], bound: int, together: int
) -> None:
    large = to_blobs(sizes, bound, together)
    assert {name for name, size in sizes.items() if size > bound} <= large
    assert sum(size for name, size in sizes.items() if name not in large) <= together
    others = [sizes[name] for name in large if sizes[name] <= bound]
    if others:  # and no more than has to
        left = sum(size for name, size in sizes.items() if name not in large)
        assert left + min(others) > together


def test_many_tensors_that_are_not_large_do_not_make_a_record_that_no_topic_takes() -> None:
    store = Store()
    inputs = {f"x{n}": np.zeros(60_000, np.uint8) for n in range(30)}
    value = value_of(asked(inputs), answered({}), store=store)
    record = read(value)
    kept = [one for one in record.inputs.values() if one.blob is None]
    assert 0 < sum(len(one.raw or b"") for one in kept) <= PREDICTION_RECORD_BYTES_MAX
    assert len(value) < 1_000_000


# --- there and back -------------------------------------------------------------------------------


@given(ARRAYS, ARRAYS, st.integers(0, 64))
def test_readers_get_every_tensor_back_bit_for_bit(x: Any, y: Any, bound: int) -> None:
    store = Store()
    policy = PredictionPolicy(topic=True, blob_bytes=bound)
    record = recorded(asked({"x": x}), answered({"y": y}), policy, store=store)
    for array, tensor in ((x, record.inputs["x"]), (y, record.outputs["y"])):
        found = array_of(tensor, store.blobs.__getitem__)
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert found.tobytes() == array.tobytes()
        assert (tensor.blob is not None) == (array.nbytes > bound)


@given(TEXTS, st.integers(0, 64))
def test_readers_get_texts_and_bytes_back(elements: list[bytes], bound: int) -> None:
    store = Store()
    policy = PredictionPolicy(topic=True, blob_bytes=bound)
    record = recorded(asked({"x": texts(elements)}), answered({}), policy, store=store)
    found = array_of(record.inputs["x"], store.blobs.__getitem__)
    assert found.tolist() == elements


def test_the_blob_of_an_image_is_the_image() -> None:
    store, image = Store(), bytes(range(256)) * 1_000
    record = recorded(asked({"image": texts([image])}), answered({}), store=store)
    reference = record.inputs["image"].blob
    assert reference is not None and store.blobs[reference.key] == image
    assert reference.sha256 == hashlib.sha256(image).hexdigest()
    assert reference.bytes == len(image)


def test_small_tensors_are_lists_that_any_program_reads() -> None:
    inputs = {
        "x": np.array([[0.5, 2.0]], np.float32),
        "t": texts([b"hello", "wörld".encode()]),
        "flag": np.array([True]),
    }
    outputs = {"y": np.array([7]), "bad": np.array([np.nan, 1.0])}
    plain = json.loads(value_of(asked(inputs), answered(outputs), store=Store()))
    assert plain["inputs"]["x"] == {"datatype": "FP32", "shape": [1, 2], "data": [0.5, 2.0]}
    assert plain["inputs"]["t"]["data"] == ["hello", "wörld"]
    assert plain["inputs"]["flag"]["data"] == [True]
    assert plain["outputs"]["y"] == {"datatype": "INT64", "shape": [1], "data": [7]}
    # JSON has no NaN.
    assert "raw" in plain["outputs"]["bad"] and "data" not in plain["outputs"]["bad"]


def test_a_larger_tensor_is_bytes_that_any_program_reads() -> None:
    import base64
    import struct

    values = [float(number) for number in range(PREDICTION_LIST_ELEMENTS_MAX + 1)]
    request = asked({"x": np.array(values, np.float32)})
    plain = json.loads(value_of(request, answered({}), store=Store()))
    raw = base64.b64decode(plain["inputs"]["x"]["raw"])
    assert list(struct.unpack(f"<{len(values)}f", raw)) == values


# --- what is said of a request --------------------------------------------------------------------


def test_a_record_says_who_asked_for_what_and_who_answered() -> None:
    request = asked({"x": np.zeros(1)}, id="mine", trace="t-1", variant="canary", region="eu")
    plain = json.loads(value_of(request, answered({}), store=Store()))
    assert (plain["id"], plain["client_id"], plain["service"]) == ("t-1", "mine", "s")
    assert (plain["model"], plain["version"], plain["variant"]) == ("m", 3, "canary")
    assert (plain["region"], plain["replica"]) == ("eu", 7)
    assert (plain["at"], plain["ms"]) == (1.5, 0.25)


def test_the_gateways_id_goes_before_the_clients() -> None:
    assert id_of(asked({}, id="mine", trace="gateway")) == "gateway"
    assert id_of(asked({}, id="mine")) == "mine"
    assert id_of(asked({})) == ""


@given(st.sets(st.sampled_from("abc")), ARRAYS)
def test_nothing_of_a_redacted_input_is_in_the_record(redact: set[str], array: Any) -> None:
    store = Store()
    policy = PredictionPolicy(topic=True, redact=tuple(redact), blob_bytes=0)
    inputs: dict[str, Any] = {name: texts([b"secret-" + name.encode()]) for name in "abc"}
    inputs["n"] = array
    value = value_of(asked(inputs), answered({"y": array}), policy, store=store)
    record, everything = read(value), value + b"".join(store.blobs.values())
    for name in "abc":
        tensor = record.inputs[name]
        assert tensor.redacted == (name in redact)
        assert (f"secret-{name}".encode() in everything) == (name not in redact)
        if tensor.redacted:
            assert (tensor.datatype, tensor.shape) == ("BYTES", (1,))
            with pytest.raises(Usage, match="redacted"):
                array_of(tensor)


def test_entities_are_named_by_inputs_and_parameters() -> None:
    policy = PredictionPolicy(topic=True, keys=("user", "item", "shop", "none"))
    inputs = {"user": texts([b"u1", b"u2"]), "item": np.arange(100)}
    request = asked(inputs, parameters={"shop": "s9", "other": 1})
    keys = recorded(request, answered({}), policy, store=Store()).keys
    assert keys["user"] == ["u1", "u2"] and keys["shop"] == ["s9"]
    assert keys["item"] == list(range(PREDICTION_KEYS_MAX))
    assert set(keys) == {"user", "item", "shop"}
    routed = recorded(asked({}, entity="c-7"), answered({}), store=Store())
    assert routed.keys == {ROUTED: ["c-7"]}


def test_the_size_counts_what_elements_hold() -> None:
    request = asked({"x": texts([b"12345", b"678"]), "n": np.zeros(4, np.float32)})
    assert size_of(request, answered({"y": np.zeros(1)})) == 8 + 16 + 8


# --- readers --------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 9).map(str)))
def test_readers_take_the_first_record_of_each_request(ids: list[str]) -> None:
    first = FirstOfEach()
    assert [one for one in ids if first.is_new(one)] == list(dict.fromkeys(ids))


def test_a_reader_remembers_a_bounded_number_of_requests() -> None:
    first = FirstOfEach(ids_max=2)
    assert all(first.is_new(one) for one in "abc")
    assert not first.is_new("c") and not first.is_new("b") and first.is_new("a")


def test_a_later_version_may_add_fields_and_something_else_is_refused() -> None:
    value = value_of(asked({}), answered({}), store=Store())
    plain = {**json.loads(value), "later": 1}
    assert read(json.dumps(plain).encode()) == read(value)
    with pytest.raises(Corrupt, match="not the record of a prediction"):
        read(b"{}")


def test_a_blob_is_not_read_without_a_store() -> None:
    store = Store()
    record = recorded(asked({"x": np.zeros(100_000)}), answered({}), store=store)
    with pytest.raises(Usage, match="blob store"):
        array_of(record.inputs["x"])


def test_strange_names_and_texts_do_not_break_the_record() -> None:
    odd = 'a"b\\c\n\u2028é'
    request = asked({odd: np.zeros(99)}, trace=odd, variant=odd, region=odd, id=odd)
    record = recorded(request, answered({odd: np.zeros(99, ">f4")}), store=Store())
    assert (record.id, record.client_id, record.variant, record.region) == (odd,) * 4
    assert array_of(record.inputs[odd]).tolist() == [0.0] * 99
    assert record.outputs[odd].datatype == "FP32"


def test_what_a_writer_remembers_is_bounded() -> None:
    writer = RecordWriter("s", 7, ON)
    for number in range(2_500):
        request = asked({"x": np.zeros(number + 9, np.uint8)}, variant=str(number))
        writer.write(request, answered({}), "id", 1.0, 1.0)
    assert max(len(writer._heads), len(writer._tensors)) <= 1_024
