"""Ways to compress: bounds of what they lose, and that nothing is lost for ever."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from holdfast.train import Run
from holdfast.train.states.tracked import Tracked
from holdfast.train.sums.compression import Code, Largest, LowRank, Rounded, Whole, code_of
from holdfast.train.sums.gradients import GradientSums, Layout
from holdfast.wire.errors import Usage
from tests.unit.train_torch.alone import Rows, alone

LANES = 8
WAYS = ["bf16", "int8", "topk:0.02", "powersgd:2"]


def parameters(seed: int = 3) -> list[nn.Parameter]:
    torch.manual_seed(seed)
    return [nn.Parameter(torch.randn(40, 70)), nn.Parameter(torch.randn(33))]


def through(code: Code, value: torch.Tensor, lanes: int) -> torch.Tensor:
    raw = code.encode(value, lanes)
    assert raw.numel() == code.bytes_of(value.numel(), lanes)
    found = torch.full_like(value, 7.0)
    code.decode(raw.clone(), lanes, found)
    return found


@pytest.mark.parametrize("kind", [Rounded, Whole])
@pytest.mark.parametrize("scale", [1e-44, 1e-38, 1e-3, 1.0, 127.0, 1e30])
def test_what_is_on_the_grid_travels_exactly_and_is_on_it_when_it_is_put_there_again(
    kind: type[Code], scale: float
) -> None:
    code = kind(parameters())
    for seed in range(20):
        value = torch.randn(128 * 6, generator=torch.Generator().manual_seed(seed)) * scale
        value[128:256] = 0
        value[256] = 127 * scale  # a scale that needs no room
        code.snap(value)
        once = value.clone()
        code.snap(value)
        assert torch.equal(value, once)
        assert torch.equal(through(code, value, 1), once)


def test_rounding_loses_no_more_than_half_a_step_of_the_grid() -> None:
    torch.manual_seed(1)
    value = torch.randn(128 * 50)
    rounded, whole = value.clone(), value.clone()
    Rounded(parameters()).snap(rounded)
    Whole(parameters()).snap(whole)
    assert ((rounded - value).abs() <= value.abs() * 2.0**-8).all()
    # The step is at most twice the largest number of the block by 127.
    top = value.view(-1, 128).abs().amax(1, keepdim=True)
    assert ((whole - value).view(-1, 128).abs() <= top / 127).all()


def test_a_number_that_is_none_stays_visible_and_spoils_only_its_block() -> None:
    for bad in (torch.nan, torch.inf):
        value = torch.ones(256)
        value[3] = bad
        code = Whole(parameters())
        code.snap(value)
        found = through(code, value, 1)
        assert not torch.isfinite(found[3])
        assert torch.equal(found[128:], torch.ones(128))


@pytest.mark.parametrize("ratio", [0.01, 0.3])
def test_a_sum_of_sparse_lanes_travels_exactly(ratio: float) -> None:
    code = Largest(parameters(), ratio)
    total = torch.zeros(4096)
    for lane in range(5):
        value = torch.randn(4096, generator=torch.Generator().manual_seed(lane))
        code.leaf(lane, 0, value)
        assert (value != 0).sum() == 4 * code.count
        total += value
        assert torch.equal(through(code, total, lane + 1), total)


def test_what_top_k_leaves_out_comes_later_so_that_nothing_is_lost_over_steps() -> None:
    code = Largest(parameters(), 0.05)
    chance = torch.Generator().manual_seed(5)
    given = {lane: torch.zeros(2048) for lane in range(3)}
    taken = {lane: torch.zeros(2048) for lane in range(3)}
    for _ in range(30):
        for lane in range(3):
            value = torch.randn(2048, generator=chance)
            given[lane] += value
            again = value.clone()
            code.leaf(lane, 0, again)  # computed, and lost before the step was complete
            code.leaf(lane, 0, value)
            assert torch.equal(again, value), "a lane that is computed again sends the same"
            taken[lane] += value
        code.complete()
    for lane in range(3):
        rest = code.left.of(lane, 0)
        assert rest is not None
        assert torch.allclose(taken[lane] + rest, given[lane], atol=1e-4)


def test_what_power_sgd_leaves_out_comes_later_so_that_nothing_is_lost_over_steps() -> None:
    found = parameters()
    code = LowRank(found, 2)
    given, taken = torch.zeros(40, 70), torch.zeros(40, 70)
    chance = torch.Generator().manual_seed(5)
    for _ in range(20):
        total = torch.zeros(70, 2)
        for lane in range(3):
            gradient = torch.randn(40, 70, generator=chance)
            given += gradient
            total += code.shrink(lane, 0, gradient)
        code.complete()
        taken += code.grow(0, total)
    rests = [code.left.of(lane, 0) for lane in range(3)]
    left = torch.stack([rest for rest in rests if rest is not None]).sum(0)
    assert torch.allclose(taken + left, given, atol=1e-3)


def test_power_sgd_finds_a_gradient_of_low_rank_within_a_few_steps() -> None:
    torch.manual_seed(2)
    gradient = torch.randn(40, 2) @ torch.randn(2, 70)
    code = LowRank(parameters(), 2)
    for _ in range(4):
        found = code.grow(0, code.shrink(0, 0, gradient))
        code.left.forget()
    assert torch.allclose(found, gradient, atol=1e-3)


@pytest.mark.parametrize("spelled", WAYS)
def test_pieces_become_the_same_sum_whoever_summed_which_lanes(spelled: str) -> None:
    """The root, once from one worker's sums and once from two workers' pieces over the wire."""
    gradients = [
        [torch.randn(40, 70, generator=torch.Generator().manual_seed(lane)), torch.randn(33)]
        for lane in range(LANES)
    ]

    def summed(lanes: list[int]) -> tuple[GradientSums, Code]:
        tracked = Tracked()
        tracked.add("model", nn.ParameterList(parameters()))
        code = code_of(spelled, tracked)
        assert code is not None
        sums = GradientSums(Layout(code.summed(), block=code.block), LANES, code)
        for lane in lanes:
            sums.begin(lane)
            for number, gradient in enumerate(gradients[lane]):
                sums.take(number, code.shrink(lane, number, gradient))
            sums.end()
        return sums, code

    whole, code = summed(list(range(LANES)))
    (root,) = whole.partials.values()
    halves = [summed([0, 1, 2, 3])[0], summed([6, 7, 4, 5])[0]]
    for bucket, right in enumerate(root):
        left, other = (through(code, next(iter(h.partials.values()))[bucket], 4) for h in halves)
        total = left + other
        if not code.exact:
            code.snap(total)
        assert torch.equal(total, right)
        assert torch.equal(through(code, total, LANES), right)


@pytest.mark.parametrize("spelled", WAYS)
def test_a_compressed_run_learns_and_its_setting_is_found(spelled: str) -> None:
    losses: list[float] = []

    def script(run: Run) -> None:
        model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2))
        run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.3))
        run.every(1, lambda run: losses.append(run.metrics["loss"]))
        for batch in run.batches(Rows(64), lane_batch=4, epochs=15):
            run.step(functional.cross_entropy(model(batch.x), (batch.x[:, 0] > 0.5).long()))

    held = alone(script, settings={"compress": spelled})
    assert "(compression)" in held.state().notes["objects"]
    assert losses[-1] < losses[0] * 0.9


@pytest.mark.parametrize(("said", "found"), [({}, Whole), ({"compress": "bf16"}, Rounded)])
def test_a_script_says_how_unless_the_job_does(said: dict[str, str], found: type[Code]) -> None:
    def script(run: Run) -> None:
        model = nn.Linear(3, 2)
        run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.3))
        run.compress("int8")
        for batch in run.batches(Rows(32), lane_batch=4):
            run.step(functional.cross_entropy(model(batch.x), batch.y))

    assert type(alone(script, settings=said).tracked.objects["(compression)"]) is found


def test_an_unknown_way_is_told() -> None:
    for spelled in ("int4", "bf16:3", "topk:2", "topk:x", "powersgd:0"):
        with pytest.raises(Usage, match="compress="):
            code_of(spelled, Tracked())
