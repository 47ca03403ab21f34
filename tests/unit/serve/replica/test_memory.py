"""When a replica gives memory back that it does not use any more."""

from __future__ import annotations

import ctypes

from holdfast.serve.replica import main
from holdfast.serve.replica.main import MEMORY_GROWN_BYTES_MIN, Growth

START = 100 * 1024 * 1024
MUCH = MEMORY_GROWN_BYTES_MIN


def test_a_replica_that_is_as_large_as_ever_has_nothing_to_give_back() -> None:
    growth = Growth()
    assert not any(growth.is_over(START + each) for each in (0, 0, MUCH - 1, MUCH - 1, 0))


def test_what_still_grows_is_in_use() -> None:
    growth = Growth()
    assert not any(growth.is_over(START + times * MUCH) for times in range(10))
    assert growth.is_over(START + 9 * MUCH)


def test_what_is_left_after_it_was_given_back_is_not_asked_for_again() -> None:
    growth = Growth()
    growth.is_over(START)
    growth.is_over(START + 5 * MUCH)
    assert growth.is_over(START + 5 * MUCH)
    growth.given_back(START + 4 * MUCH)
    assert not growth.is_over(START + 4 * MUCH)
    assert not growth.is_over(START + 5 * MUCH)
    assert growth.is_over(START + 5 * MUCH)


def test_a_replica_that_became_smaller_by_itself_counts_from_there() -> None:
    growth = Growth()
    growth.is_over(START + MUCH)
    growth.is_over(START)
    growth.is_over(START + MUCH)
    assert growth.is_over(START + MUCH)


def test_memory_that_was_freed_in_small_pieces_goes_back_to_the_system() -> None:
    """Each second piece stays, so that the heap has no end that could be cut off."""
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes = [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    size, count = 64 * 1024, 1_024
    pieces = [library.malloc(size) for _ in range(count)]
    for piece in pieces:
        ctypes.memset(piece, 1, size)
    for piece in pieces[::2]:
        library.free(piece)
    full = main.resident_bytes()
    main.give_back()
    assert main.resident_bytes() < full - size * count // 4
    for piece in pieces[1::2]:
        library.free(piece)
    main.give_back()
