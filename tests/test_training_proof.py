"""The proof of equal bits in short, and the proof that its judgement sees what it is for.

`make proof-training SCHEDULES=30` is the long one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.proofs import seed_of
from tests.proofs.training import judging
from tests.proofs.training.campaign import Campaign, Plan
from tests.proofs.training.judging import Consumed, Violation
from tests.proofs.training.schedules import KINDS, MODELS, schedule

pytestmark = pytest.mark.engines

SHORT = 2
SEED = 1


def test_a_training_ends_with_the_bits_of_a_plain_process_whatever_was_killed_or_resized(
    tmp_path: Path,
) -> None:
    seed = seed_of(SEED)
    plan = Plan(seed, SHORT, epochs=6, models=(MODELS[seed % 3],), sizes=(), nodes=1)
    print(plan.command())
    campaign = Campaign(plan, tmp_path, print)
    campaign.run()
    print(campaign.table())
    assert campaign.tally.total() > SHORT  # each begins with a resize


# Two epochs of four samples: two steps of two lanes each.
LOG = [
    Consumed(1, 1, 0, 0, 0, (3,)),
    Consumed(2, 1, 0, 1, 0, (0,)),
    Consumed(1, 2, 0, 0, 0, (1,)),
    Consumed(2, 2, 0, 1, 0, (2,)),
    Consumed(1, 3, 1, 0, 0, (2, 0)),
    Consumed(3, 3, 1, 1, 0, (1, 3)),
]


def test_a_log_in_which_each_sample_counts_once_is_right() -> None:
    assert judging.every_sample_counts_once(LOG, 4, 2) == 0


def test_a_batch_that_another_worker_computes_again_counts_once() -> None:
    assert judging.every_sample_counts_once([*LOG, replace(LOG[1], worker=3)], 4, 2) == 1


@pytest.mark.parametrize(
    "log",
    [
        [*LOG, replace(LOG[1], worker=3, samples=(1,))],
        [*LOG, replace(LOG[1], worker=3, epoch=1)],
        LOG[:-1],
        [*LOG, Consumed(1, 4, 1, 0, 0, (2,))],
        [*LOG, Consumed(1, 4, 2, 0, 0, (0, 1, 2, 3))],
        [replace(one, epoch=0) for one in LOG],
    ],
    ids=[
        "two workers take different samples",
        "two workers are in different epochs",
        "samples are left out",
        "a sample comes twice",
        "there is one epoch more",
        "an epoch is missing",
    ],
)
def test_a_log_with_something_wrong_is_seen(log: list[Consumed]) -> None:
    with pytest.raises(Violation):
        judging.every_sample_counts_once(log, 4, 2)


def test_other_bits_are_seen() -> None:
    with pytest.raises(Violation):
        judging.same_bits("a" * 64, "b" * 64, "mlp")


def test_a_line_that_a_kill_has_cut_off_is_left_out(tmp_path: Path) -> None:
    line = '{"worker": 1, "step": 2, "epoch": 0, "lane": 3, "part": 0, "samples": [4, 5]}\n'
    (tmp_path / "1-10.jsonl").write_text(line + line[:30])
    assert judging.read(tmp_path) == [Consumed(1, 2, 0, 3, 0, (4, 5))]


def test_a_seed_always_gives_the_same_schedule_and_all_kinds_of_moves_come() -> None:
    some = [schedule(seed, 100) for seed in range(200)]
    assert some == [schedule(seed, 100) for seed in range(200)]
    assert {move.kind for one in some for move in one.moves} == set(KINDS)
    assert {one.model for one in some} == set(MODELS)
    assert {one.set_at for one in some} == {None, 50}
    for one in some:
        steps = [move.at_step for move in one.moves]
        assert steps == sorted(steps)
        assert 1 <= steps[0] <= steps[-1] < 100
