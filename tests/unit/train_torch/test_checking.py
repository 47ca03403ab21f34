"""Who is checked when, who was wrong, and what a lane's bits come to."""

from __future__ import annotations

import pytest
import torch

from holdfast.train.sums.checking import Check, Checking, NoVerdict, answer_of, bit_sums, due
from holdfast.wire.errors import GpuFault

DEALT = {0: (0, 1, 2), 1: (3, 4), 2: (5, 6, 7)}


@pytest.mark.parametrize("steps", [1, 3, 10, 100])
def test_each_worker_is_checked_within_the_configured_steps_by_another(steps: int) -> None:
    within = max(steps, len(DEALT))
    found = [due(step, steps, DEALT) for step in range(20 * within)]
    for begin in range(0, 19 * within):
        holders = {check.holder for check in found[begin : begin + within] if check is not None}
        assert holders == set(DEALT)
    for check in found:
        if check is not None:
            assert check.lane in DEALT[check.holder]
            assert check.holder not in check.checkers
    assert {check.lane for check in found if check is not None} == set(range(8))


def test_nobody_is_checked_where_nothing_was_configured_or_nobody_else_is_there() -> None:
    assert due(0, 0, DEALT) is None
    assert due(0, 1, {0: (0, 1), 1: ()}) is None


def checked(*rounds: dict[int, str]) -> tuple[Checking, int | None]:
    """One step of three workers in which lane 0 of worker 0 is checked, in so many rounds."""
    checking, found = Checking(3), None
    for answers in rounds:
        check = checking.now(0, DEALT)
        assert check is not None
        found = checking.judge(DEALT, {check.lane: answers})
    return checking, found


def test_answers_that_are_the_same_are_no_dispute() -> None:
    assert checked({0: "a", 1: "a"})[1] is None
    assert checked({0: "a"})[1] is None


def test_a_third_one_decides() -> None:
    checking, found = checked({0: "a", 1: "b"})
    assert found == -1
    assert checking.now(0, DEALT) == Check(0, 0, (2,))
    assert checked({0: "a", 1: "b"}, {0: "a", 1: "b", 2: "b"})[1] == 0
    assert checked({0: "a", 1: "b"}, {0: "a", 1: "b", 2: "a"})[1] == 1
    with pytest.raises(NoVerdict, match="workers 0, 1, 2 come to different gradients of lane 0"):
        checked({0: "a", 1: "b"}, {0: "a", 1: "b", 2: "c"})


def test_of_two_workers_the_one_that_does_not_come_to_the_same_again_was_wrong() -> None:
    dealt = {0: (0, 1), 1: (2, 3)}

    def verdict(second: dict[int, str]) -> int | None:
        checking = Checking(2)
        assert checking.now(0, dealt) == Check(0, 0, (1,))
        assert checking.judge(dealt, {0: {0: "a", 1: "b"}}) == -1
        assert checking.now(0, dealt) == Check(0, 0, (0, 1))
        return checking.judge(dealt, {0: second})

    assert verdict({0: "a", 1: "a"}) == 1
    assert verdict({0: "b", 1: "b"}) == 0
    with pytest.raises(NoVerdict):
        verdict({0: "a", 1: "b"})


def test_who_was_wrong_on_a_gpu_ends_with_a_fault_of_the_gpu() -> None:
    checking, wrong = checked({0: "a", 1: "b"}, {0: "a", 1: "b", 2: "b"})
    assert wrong == 0
    fault = checking.fault(wrong, 41, torch.device("cuda", 0))
    assert isinstance(fault, GpuFault)
    assert "GPU 0 of worker 0 has computed lane 0 of step 42 wrongly" in fault.what
    assert checking.now(0, DEALT) is None, "it is settled: nobody computes it again"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.float16])
def test_every_flipped_bit_is_another_answer(dtype: torch.dtype) -> None:
    gradient = torch.randn(7, 5, generator=torch.Generator().manual_seed(1)).to(dtype)
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    right = answer_of([bit_sums(gradient), None])
    assert right == answer_of([bit_sums(gradient.t().contiguous().t()), None])
    seen = {right}
    for bit in range(dtype.itemsize * 8):
        flipped = gradient.clone()
        flipped.view(-1).view(whole)[3] ^= torch.tensor(1, dtype=whole) << bit
        seen.add(answer_of([bit_sums(flipped), None]))
    assert len(seen) == dtype.itemsize * 8 + 1
