"""Rows that a process keeps: a read is never older than it tells, whatever happens in between."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.features.cache import CACHE_BYTES_MAX, RowCache

AGE_S = 5.0


def test_a_row_is_given_until_it_is_too_old() -> None:
    cache = RowCache()
    assert cache.look("t", [b"k"], AGE_S, 10.0).missing == [0]
    cache.fill("t", [b"k"], [b"row"], 10.0)
    looked = cache.look("t", [b"other", b"k"], AGE_S, 14.0)
    assert (looked.found, looked.missing, looked.oldest_s) == ([None, b"row"], [0], 10.0)
    assert cache.look("t", [b"k"], AGE_S, 15.1).missing == [0]
    assert cache.look("u", [b"k"], AGE_S, 11.0).missing == [0], "another table"


def test_that_there_is_no_row_is_kept_too() -> None:
    cache = RowCache()
    cache.fill("t", [b"k"], [None], 10.0)
    assert cache.look("t", [b"k"], AGE_S, 11.0).missing == []


def test_a_read_that_began_before_a_change_fills_nothing() -> None:
    cache = RowCache()
    cache.drop("t", [b"k"], 12.0)
    cache.fill("t", [b"k"], [b"before"], 11.0)
    assert cache.look("t", [b"k"], AGE_S, 12.5).missing == [0]
    cache.fill("t", [b"k"], [b"after"], 13.0)
    assert cache.look("t", [b"k"], AGE_S, 13.5).found == [b"after"]


def test_a_slow_read_does_not_replace_what_a_later_one_has_read() -> None:
    cache = RowCache()
    cache.fill("t", [b"k"], [b"new"], 12.0)
    cache.fill("t", [b"k"], [b"old"], 11.0)
    assert cache.look("t", [b"k"], AGE_S, 12.5).found == [b"new"]


def test_what_is_asked_often_is_named_once_before_it_is_too_old() -> None:
    cache = RowCache()
    cache.fill("t", [b"hot", b"cold"], [b"1", b"2"], 10.0)
    assert cache.look("t", [b"hot"], AGE_S, 11.0).ahead == []
    assert cache.look("t", [b"hot", b"cold"], AGE_S, 14.5).ahead == [b"hot"]
    assert cache.look("t", [b"hot"], AGE_S, 14.6).ahead == []


def test_it_keeps_no_more_bytes_than_it_may() -> None:
    cache = RowCache(bytes_max=10_000)
    for number in range(100):
        cache.fill("t", [b"%d" % number], [bytes(500)], float(number))
    assert 0 < len(cache) < 100
    assert cache.size_bytes <= 10_000 < CACHE_BYTES_MAX
    assert cache.look("t", [b"99"], 1_000.0, 100.0).missing == [], "the last ones are kept"


KEYS = st.sampled_from([b"a", b"b", b"c"])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "end", "write", "look"]),
        KEYS,
        st.floats(0.0, 2.0, allow_nan=False),
    ),
    max_size=60,
)


@given(STEPS)
def test_no_read_is_older_than_it_tells(steps: list[tuple[str, bytes, float]]) -> None:
    """Reads take time and end in any order; writes go through this process, or pass it by. A read
    from the cache is what the store held at some moment since `oldest_s`."""
    cache = RowCache(bytes_max=1_500)
    now_s = 0.0
    held: dict[bytes, list[tuple[float, bytes | None]]] = {
        key: [(-1.0, None)] for key in (b"a", b"b", b"c")
    }
    reads: list[tuple[bytes, float, bytes | None]] = []
    for number, (what, key, pause_s) in enumerate(steps):
        now_s += pause_s
        if what == "begin":
            reads.append((key, now_s, held[key][-1][1]))
        elif what == "end" and reads:
            read_key, began_s, found = reads.pop(number % len(reads))
            cache.fill("t", [read_key], [found], began_s)
        elif what == "write":
            held[key].append((now_s, b"%d" % number))
            if number % 2:
                cache.drop("t", [key], now_s)
        else:
            looked = cache.look("t", [key], AGE_S, now_s)
            if looked.missing:
                continue
            assert now_s - looked.oldest_s <= AGE_S
            changes = held[key]
            ends = [at for at, _ in changes[1:]] + [float("inf")]
            true_since = [
                value
                for (_, value), end_s in zip(changes, ends, strict=True)
                if end_s >= looked.oldest_s
            ]
            assert looked.found[0] in true_since
        assert cache.size_bytes <= 1_500
