"""The parts of the cache: keys, memory, bytes for a store, and the breaker."""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.models.records import ModelKind, Signature, Version
from holdfast.serve.cache.results import LocalCache, pack, size_of, unpack
from holdfast.serve.cache.shared import RedisBreaker
from holdfast.serve.cache.updates import ModelUpdate
from holdfast.serve.protocol.tensors import DTYPES, Array, InferRequest, key_of
from holdfast.wire.errors import Corrupt, Usage
from tests.unit.serve.protocol.tensors_made import arrays, same

VERSION = Version("m", 1, ModelKind.FUNCTION, Signature((), ()), {}, "publication", 0.0)
KEY = bytes(range(20))


def request(inputs: dict[str, Array], outputs: tuple[str, ...] = (), id: str = "") -> InferRequest:
    return InferRequest("m", 1, id, inputs, outputs)


# --- keys ----------------------------------------------------------------------------------------


def test_equal_requests_have_one_key_whoever_sent_them() -> None:
    one, two = np.ones(3, np.float32), np.zeros(2, np.int64)
    first = key_of(VERSION, request({"a": one, "b": two}, id="1"))
    second = key_of(VERSION, request({"b": two.copy(), "a": one.copy()}, id="2"))
    strided = np.array([1, 9, 1, 9, 1], np.float32)[::2]
    assert first == second == key_of(VERSION, request({"a": strided, "b": two}))


def test_whatever_may_change_an_answer_changes_the_key() -> None:
    array = np.arange(4, dtype=np.float32)
    texts = [np.array([b"ab", b"c"], object), np.array([b"a", b"bc"], object)]
    keys = [
        key_of(VERSION, request({"a": array})),
        key_of(VERSION, request({"b": array})),
        key_of(VERSION, request({"a": array.reshape(2, 2)})),
        key_of(VERSION, request({"a": array.view(np.int32)})),
        key_of(VERSION, request({"a": array + 1})),
        key_of(VERSION, request({"a": array}, ("y",))),
        key_of(VERSION, request({"a": array}, ("y", "z"))),
        key_of(VERSION, request({"a": array}, ("z", "y"))),
        key_of(replace(VERSION, number=2), request({"a": array})),
        key_of(replace(VERSION, publication="another"), request({"a": array})),
        *(key_of(VERSION, request({"a": text})) for text in texts),
    ]
    assert len(set(keys)) == len(keys)


# --- memory --------------------------------------------------------------------------------------


def row(value: float, size: int = 4) -> dict[str, Array]:
    return {"y": np.full(size, value, np.float32)}


def test_the_one_not_asked_for_the_longest_goes_first() -> None:
    memory = LocalCache(2, 10**9)
    memory.put(b"1", row(1))
    memory.put(b"2", row(2))
    memory.get(b"1")
    memory.put(b"3", row(3))
    assert memory.get(b"2") is None
    kept = [memory.get(key) for key in (b"1", b"3")]
    assert [held["y"][0] for held in kept if held is not None] == [1, 3]


def test_memory_stays_within_its_bytes_and_refuses_what_can_never_fit() -> None:
    memory = LocalCache(1_000, 4 * size_of(row(0)))
    for number in range(50):
        memory.put(str(number).encode(), row(number))
        assert memory.bytes <= memory.bytes_max
    assert len(memory) == 4
    memory.put(b"large", row(0, size=10_000))
    assert memory.get(b"large") is None and len(memory) == 4
    memory.entries_max = 1
    memory.shrink()
    assert len(memory) == 1 and memory.bytes == size_of(row(0))


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), max_size=40))
def test_its_bytes_are_those_of_what_it_holds(steps: list[tuple[int, int]]) -> None:
    memory = LocalCache(4, 3_000)
    for key, size in steps:
        memory.put(bytes([key]), {"y": np.zeros(size, np.float32)})
    held = [memory.get(bytes([key])) for key in range(6)]
    assert memory.bytes == sum(size_of(outputs) for outputs in held if outputs is not None)
    assert len(memory) == sum(outputs is not None for outputs in held) <= 4


def test_what_it_holds_is_its_own_and_nobody_changes_it() -> None:
    memory = LocalCache(2, 10**9)
    batch = np.zeros((1_000, 4), np.float32)
    memory.put(b"1", {"y": batch[:1]})
    batch += 1
    held = memory.get(b"1")
    assert held is not None and held["y"].base is None and held["y"][0, 0] == 0
    with pytest.raises(ValueError, match="read-only"):
        held["y"][0] = 5


# --- bytes for a store ---------------------------------------------------------------------------


@settings(max_examples=25)
@given(st.data())
@pytest.mark.parametrize("datatype", sorted(DTYPES))
def test_outputs_come_back_bit_for_bit(datatype: str, data: st.DataObject) -> None:
    outputs = {"y": data.draw(arrays(datatype)), "z": np.zeros((), np.int64)}
    again = unpack(KEY, pack(KEY, outputs))
    assert list(again) == ["y", "z"]
    assert all(same(again[name], array) for name, array in outputs.items())


def test_damaged_exchanged_or_foreign_bytes_are_never_an_answer() -> None:
    value = pack(KEY, {"y": np.arange(8, dtype=np.float32), "w": np.array([b"abc"], object)})
    with pytest.raises(Corrupt):
        unpack(bytes(20), value)
    for foreign in (b"", b"hfc1", b"OK", value[:-1], value + b"\0", value * 2):
        with pytest.raises(Corrupt):
            unpack(KEY, foreign)
    dice = random.Random(5)
    for at in range(len(value)):
        damaged = bytearray(value)
        damaged[at] ^= 1 << dice.randrange(8)
        with pytest.raises(Corrupt):
            unpack(KEY, bytes(damaged))


def test_an_array_of_no_datatype_is_not_packed() -> None:
    with pytest.raises(Usage, match="complex"):
        pack(KEY, {"y": np.zeros(2, np.complex64)})


# --- the breaker ---------------------------------------------------------------------------------


def test_the_breaker_opens_after_failures_in_a_row_and_tries_ever_less_often() -> None:
    breaker = RedisBreaker(3, 1.0, 4.0)
    assert not breaker.closed
    breaker.succeeded()
    for _ in range(5):
        breaker.failed()
        breaker.failed()
        breaker.succeeded()
    assert breaker.closed and breaker.opened == 0
    for _ in range(3):
        breaker.failed()
    assert not breaker.closed and breaker.opened == 1 and breaker.pause_s == 1.0
    pauses = []
    for _ in range(4):
        breaker.failed()
        pauses.append(breaker.pause_s)
    assert pauses == [2.0, 4.0, 4.0, 4.0]
    breaker.succeeded()
    assert breaker.closed and breaker.pause_s == 1.0


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3)), max_size=40), st.integers(1, 3))
def test_dropping_a_version_frees_all_of_it_and_nothing_else(
    puts: list[tuple[int, int]], gone: int
) -> None:
    memory = LocalCache(6, 10**9)
    for key, version in puts:
        memory.put(bytes([key, version]), row(key), version)
    kept = {key for key in {bytes(one) for one in puts} if memory.get(key) is not None}
    count = memory.drop(gone)
    assert count == sum(key[1] == gone for key in kept)
    left = {key for key in kept if memory.get(key) is not None}
    assert left == {key for key in kept if key[1] != gone}
    assert (len(memory), memory.bytes) == (len(left), len(left) * size_of(row(0)))
    assert memory.drop(gone) == 0


def test_an_update_of_a_model_drops_what_is_not_asked_for_and_nothing_that_is_loaded() -> None:
    def unasked_for(**told: object) -> tuple[int, ...]:
        update = msgspec.json.decode(
            msgspec.json.encode({"model": "m", "id": "1", **told}), type=ModelUpdate
        )
        return update.unasked_for({2, 3})

    assert unasked_for(change="retired", version=2) == (2,)
    assert unasked_for(change="alias.moved", alias="prod", **{"from": 1, "to": 2}) == (1,)
    assert unasked_for(change="alias.moved", alias="prod", **{"from": 2, "to": 3}) == ()
    assert unasked_for(change="alias.removed", alias="prod", **{"from": 1}) == (1,)
    assert unasked_for(change="alias.moved", alias="prod", to=2) == ()
    assert unasked_for(change="published", version=4) == ()
