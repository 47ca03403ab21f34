"""Where a version computes."""

from __future__ import annotations

from itertools import count

import pytest

from holdfast.serve.replica import batching
from holdfast.serve.replica.batching import INLINE_LATE_MAX, INLINE_STALL_S, INLINE_WINDOW, Judge
from holdfast.wire.limits import INLINE_LATE_S, INLINE_S

SHORT_S, LATE_S = INLINE_S / 2, 2 * INLINE_LATE_S


def window(judge: Judge, late: int) -> list[bool]:
    took = [LATE_S] * late + [SHORT_S] * (INLINE_WINDOW - late)
    return [judge.short_again(SHORT_S, took_s) for took_s in took]


def test_one_long_stall_or_many_late_ones_move_a_version_and_a_few_do_not() -> None:
    assert Judge().too_long(INLINE_STALL_S)
    judge = Judge()
    told = [judge.too_long(LATE_S) for _ in range(INLINE_LATE_MAX)]
    assert told == [False] * (INLINE_LATE_MAX - 1) + [True]
    for _ in range(5):
        took = [LATE_S] * (INLINE_LATE_MAX - 1) + [SHORT_S] * (INLINE_WINDOW - INLINE_LATE_MAX + 1)
        assert not any(judge.too_long(took_s) for took_s in took)


def test_a_version_comes_back_after_a_calm_window_only() -> None:
    judge = Judge()
    assert not any(window(judge, INLINE_LATE_MAX))
    assert window(judge, INLINE_LATE_MAX - 1) == [False] * (INLINE_WINDOW - 1) + [True]


def test_one_that_waits_or_computes_for_long_stays_in_its_thread() -> None:
    judge = Judge()
    assert not any(judge.short_again(SHORT_S, LATE_S) for _ in range(3 * INLINE_WINDOW))
    assert not any(judge.short_again(INLINE_S, INLINE_S) for _ in range(3 * INLINE_WINDOW))


def test_each_return_takes_twice_as_long_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "INLINE_WINDOW_MAX", 4 * INLINE_WINDOW)
    judge, needed = Judge(), []
    for _ in range(4):
        needed.append(next(at for at in count(1) if judge.short_again(SHORT_S, SHORT_S)))
    assert needed == [times * INLINE_WINDOW for times in (1, 2, 4, 4)]
