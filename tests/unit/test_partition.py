"""Ranges, hashes and rings: balanced, the same in every process, and little moves."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.partition import (
    LOAD_BOUND,
    Ranges,
    Ring,
    bucket,
    even_ranges,
    kafka_partition,
    murmur2,
    stable_hash,
)
from holdfast.wire.errors import Usage

KEYS = [f"user-{number}" for number in range(4_000)]
NODES = st.sets(st.integers(0, 40), min_size=1, max_size=8)
WEIGHTS = st.dictionaries(st.text(max_size=8), st.integers(0, 1_000), max_size=40)

# From Kafka's own tests (UtilsTest.testMurmur2).
KAFKA = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}


# --- ranges ---------------------------------------------------------------------------------------


@given(st.integers(0, 1_000), st.integers(1, 50))
def test_even_ranges_cover_everything_once_and_differ_by_one_at_most(
    count: int, parts: int
) -> None:
    ranges = even_ranges(count, parts)
    assert [number for each in ranges for number in each] == list(range(count))
    assert len(ranges) == parts
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


@given(st.sets(st.integers(), max_size=20), st.integers())
def test_a_key_is_in_the_range_whose_cuts_are_around_it(cuts: set[int], key: int) -> None:
    ranges = Ranges(sorted(cuts))
    assert ranges.part(key) == sum(cut <= key for cut in cuts)
    assert 0 <= ranges.part(key) < ranges.parts


def test_what_makes_no_sense_is_refused() -> None:
    for wrong in (
        lambda: even_ranges(3, 0),
        lambda: Ranges([2, 1]),
        lambda: Ranges([1, 1]),
        lambda: bucket("a", 0),
        lambda: kafka_partition(b"a", 0),
        lambda: Ring([]),
        lambda: Ring([1], points=0),
        lambda: Ring([1]).place({"a": 1}, bound=0.9),
        lambda: Ring([1]).place({"a": -1}),
    ):
        with pytest.raises(Usage):
            wrong()


# --- hashes ---------------------------------------------------------------------------------------


def test_murmur2_is_that_of_kafka() -> None:
    for text, signed in KAFKA.items():
        assert murmur2(text.encode()) == signed % 2**32, text
        assert kafka_partition(text.encode(), 7) == (signed & 0x7FFFFFFF) % 7


def test_the_stable_hash_never_changes() -> None:
    assert stable_hash("") == 0xE3B0C44298FC1C14
    assert stable_hash("model/0.weight") == stable_hash(b"model/0.weight")
    assert stable_hash("abc") == 0xBA7816BF8F01CFEA  # of FIPS 180


def test_buckets_are_even() -> None:
    counts = Counter(bucket(key, 8) for key in KEYS)
    assert set(counts) == set(range(8))
    assert max(counts.values()) < 1.2 * len(KEYS) / 8


def test_processes_with_other_salts_agree() -> None:
    program = (
        "from holdfast.partition import Ring, bucket\n"
        "ring = Ring({'a', 'b', 'c', 'd', 'e'})\n"
        "keys = [f'k{n}' for n in range(50)]\n"
        "print([ring.owner(k) for k in keys], [bucket(k, 9) for k in keys],\n"
        "      sorted(ring.place({k: len(k) + i for i, k in enumerate(keys)}).items()))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(said) == 1


# --- rings ----------------------------------------------------------------------------------------


@given(NODES, st.integers(0, 40))
def test_only_the_keys_of_a_node_that_comes_or_goes_move(nodes: set[int], other: int) -> None:
    without, including = Ring(nodes - {other} or {99}), Ring((nodes - {other} or {99}) | {other})
    for key in KEYS[:100]:
        if including.owner(key) != other:
            assert without.owner(key) == including.owner(key)
        else:
            assert without.owner(key) == list(including.owners(key))[1], "the next one has it"


@given(NODES)
def test_the_order_in_which_nodes_are_given_does_not_matter(nodes: set[int]) -> None:
    there, back = Ring(sorted(nodes)), Ring(sorted(nodes, reverse=True))
    assert [there.owner(key) for key in KEYS[:50]] == [back.owner(key) for key in KEYS[:50]]
    assert set(there.owners("a")) == nodes


@pytest.mark.parametrize("count", [2, 3, 5, 10])
def test_a_ring_is_balanced_and_a_node_that_comes_takes_its_share(count: int) -> None:
    before, after = Ring(range(count)), Ring(range(count + 1))
    counts = Counter(before.owner(key) for key in KEYS)
    assert max(counts.values()) < 1.5 * len(KEYS) / count
    assert min(counts.values()) > 0.5 * len(KEYS) / count
    moved = sum(before.owner(key) != after.owner(key) for key in KEYS) / len(KEYS)
    assert 0.5 / (count + 1) < moved < 1.5 / (count + 1)


# --- bounded load ---------------------------------------------------------------------------------


@given(NODES, WEIGHTS, st.sampled_from([1.0, 1.1, LOAD_BOUND, 2.0]))
def test_no_node_has_more_than_its_bound_but_for_a_single_key(
    nodes: set[int], weights: dict[str, int], bound: float
) -> None:
    placed = Ring(nodes).place(weights, bound)
    assert placed.keys() == weights.keys()
    share = sum(weights.values()) / len(nodes)
    load = Counter[int]()
    for key, node in placed.items():
        load[node] += weights[key]
    heaviest = max(weights.values(), default=0)
    assert all(each <= max(bound * share, share + heaviest) + 1e-6 for each in load.values())


@given(NODES, WEIGHTS)
def test_where_nothing_is_too_much_a_key_is_with_its_owner(
    nodes: set[int], weights: dict[str, int]
) -> None:
    ring = Ring(nodes)
    assert ring.place(weights, bound=1e9) == {key: ring.owner(key) for key in weights}


def test_of_keys_with_unlike_weights_little_more_than_needed_moves() -> None:
    weights = {key: 1 + stable_hash(key) % 1_000 for key in KEYS[:400]}
    before, after = Ring(range(4)).place(weights), Ring(range(5)).place(weights)
    moved = sum(weight for key, weight in weights.items() if before[key] != after[key])
    assert moved / sum(weights.values()) < 0.3, "a fifth has to"
