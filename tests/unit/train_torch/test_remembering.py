"""What a script keeps beside the state, and what each worker has for itself, is noticed."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import IterableDataset, TensorDataset

from holdfast.train import Run, Sharded, counting, rehearsal
from holdfast.train.hooks import HookWrites, StepHooks, _print, stored_by
from holdfast.train.modes.run_state import Resuming
from holdfast.train.rehearsal import Rehearsal
from holdfast.train.states import divergence
from holdfast.train.states.memory import entry, fill
from holdfast.train.states.state import TrainingState
from holdfast.train.states.tracked import Tracked
from holdfast.train.sums import step_records
from holdfast.wire.errors import Usage
from tests.unit.train_torch.alone import Rows, alone


def learner(run: Run) -> nn.Linear:
    model = nn.Linear(3, 2)
    run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    return model


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(model(batch.x), batch.y)


# --- counting -------------------------------------------------------------------------------------


def test_a_loss_that_depends_on_the_number_of_a_workers_batch_is_refused() -> None:
    def script(run: Run) -> None:
        model = learner(run)
        for i, batch in enumerate(run.batches(Rows(16), lane_batch=2)):
            run.step(loss_of(model, batch) * (1 + i))

    with pytest.raises(Usage, match=r"i of enumerate\(run\.batches\(\.\.\.\)\) is used") as found:
        alone(script)
    assert found.value.fix is not None
    assert "run.completed" in found.value.fix


def test_the_number_of_a_batch_may_be_printed_and_used_behind_the_step() -> None:
    seen = []

    def script(run: Run) -> None:
        model = learner(run)
        for i, batch in enumerate(run.batches(Rows(16), lane_batch=2)):
            if i % 100 == 99:
                print(i)
            run.step(loss_of(model, batch))
            seen.append(i)

    alone(script)
    assert len(seen) == 8


def test_batches_that_are_paired_with_something_else_are_refused() -> None:
    def script(run: Run) -> None:
        model = learner(run)
        for batch, factor in zip(run.batches(Rows(16), lane_batch=2), range(8), strict=False):
            run.step(loss_of(model, batch) * factor)

    with pytest.raises(Usage, match="zip") as found:
        alone(script)
    assert "StackDataset" in str(found.value)


# --- hooks that read what a body wrote ------------------------------------------------------------


def reading(*, trains: bool) -> None:
    """A hook that reads a list which the body fills, and shows it or trains by it."""
    model, seen = nn.Linear(2, 1), [0.0]
    tracked = Tracked()
    tracked.add("model", model)

    def hook(_run: object) -> None:
        mean = sum(seen) / len(seen)
        if trains:
            with torch.no_grad():
                model.weight.mul_(mean)

    hooks = StepHooks()
    hooks.add(1, hook, None)
    hooks.open(tracked)
    hooks.before_body()
    seen.append(1.0)  # the body
    hooks.after_body()
    hooks.run(0, hook, None, tracked)


def test_a_hook_that_trains_by_what_the_body_of_one_worker_gathered_is_refused() -> None:
    with pytest.raises(Usage, match="reads seen, which the loop's body changes"):
        reading(trains=True)


def test_a_hook_may_show_what_the_body_gathered() -> None:
    reading(trains=False)


# --- hooks that write what a body reads -----------------------------------------------------------


def test_a_hook_that_changes_a_number_which_the_body_reads_is_refused() -> None:
    temperature = [2.0]

    def anneal(_run: object) -> None:
        temperature[0] *= 0.9

    watch = HookWrites(frozenset({"temperature"}), object(), Tracked())
    with pytest.raises(Usage, match="changes temperature, which the loop's body reads"):
        watch.run(anneal, None, _print)
    HookWrites(frozenset({"other"}), object(), Tracked()).run(anneal, None, _print)


def test_a_hook_that_writes_labels_of_the_data_set_is_refused() -> None:
    labels = torch.zeros(4)
    data = TensorDataset(torch.zeros(4, 2), labels)

    @torch.no_grad()
    def relabel(_run: object) -> None:
        labels[1] = 1

    def reach_in(_run: object) -> None:
        data.tensors[1][2] = 1

    watch = HookWrites(frozenset(), data, Tracked())
    for hook in (relabel, reach_in):
        with pytest.raises(Usage, match="changes tensors of the data set"):
            watch.run(hook, None, _print)


def test_a_hook_may_change_what_is_tracked_though_the_body_reads_it() -> None:
    model = nn.Linear(2, 1)
    tracked = Tracked()
    tracked.add("model", model)
    weight = model.weight

    def shrink(_run: object) -> None:
        with torch.no_grad():
            weight.mul_(0.5)

    HookWrites(frozenset({"weight", "model"}), object(), tracked).run(shrink, None, _print)


def test_what_a_body_only_fills_or_shows_it_does_not_read() -> None:
    found: list[frozenset[str]] = []
    scale, kept, table, shown = 2.0, [], {}, 1

    class Looking:
        def __iter__(self) -> Iterator[int]:
            return self

        def __next__(self) -> int:
            if found:
                raise StopIteration
            found.append(counting.names_read(sys._getframe(1)))
            return 1

    for number in Looking():
        kept.append(number)
        table["last"] = number
        print(shown)
        loss = number * scale
        assert loss
    assert found
    assert "scale" in found[0]
    assert not found[0] & {"kept", "table", "shown"}


# --- buffers --------------------------------------------------------------------------------------


class Making(nn.Module):
    """Its first batch makes, registers or lengthens a buffer."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.layer, self.what = nn.Linear(3, 2), what
        self.register_buffer("mean", None if what == "makes" else torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.what == "makes":
            self.mean = x.detach().mean(0)
        elif self.what == "registers":
            self.register_buffer("more", torch.zeros(1))
        else:
            assert isinstance(self.mean, torch.Tensor)
            self.mean = torch.cat([self.mean, x.detach()[0]])
        out: torch.Tensor = self.layer(x)
        return out


@pytest.mark.parametrize(
    ("what", "words_said"),
    [
        ("makes", "made a buffer of a tracked model: mean"),
        ("registers", "registered a buffer of a tracked model"),
        ("lengthens", "has changed its shape from"),
    ],
)
def test_a_buffer_that_a_batch_makes_or_lengthens_is_refused(what: str, words_said: str) -> None:
    def script(run: Run) -> None:
        model = Making(what)
        run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        for batch in run.batches(Rows(16), lane_batch=2):
            run.step(loss_of(model, batch))

    with pytest.raises(Usage, match=words_said):
        alone(script)


# --- the rehearsal --------------------------------------------------------------------------------


def test_data_that_draws_otherwise_when_it_is_asked_again_is_refused() -> None:
    asked = Rehearsal()
    asked.fetched(b"here")
    asked.fetched(b"here")
    asked.fetched(b"here")
    with pytest.raises(Usage, match="drew other random numbers for the same samples"):
        asked.fetched(b"there")


def test_each_update_of_a_batch_is_rehearsed_once_and_later_one_step_in_many() -> None:
    asked = Rehearsal()
    due = []
    for step in range(rehearsal.EVERY_STEPS + 2):
        if asked.is_due(step, step % 2):
            due.append(step)
            asked.begin(step, step % 2)
    assert due == [0, 1, rehearsal.EVERY_STEPS]


def test_what_lane_0_came_to_is_said_in_its_step_alone() -> None:
    asked = Rehearsal()
    model = nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    asked.begin(5)
    asked.for_another()
    asked.take(list(model.parameters()), lane=0)
    assert not asked.awaits
    assert asked.reported(5) == [(2.0, 2.0), (1.0, 1.0)]
    assert asked.reported(6) is None
    asked.interrupt(5, stale=False)
    assert asked.reported(5) is not None
    asked.interrupt(5, stale=True)
    assert asked.reported(5) is None


def test_a_step_that_lost_a_worker_is_rehearsed_again_by_whoever_has_lane_0_now() -> None:
    asked = Rehearsal()
    asked.begin(0)
    assert not asked.is_due(0)
    asked.interrupt(0, stale=False)
    assert asked.is_due(0)
    asked.begin(0)
    asked.interrupt(1, stale=False)  # the step was through
    assert not asked.is_due(1)


def test_an_error_of_a_script_that_began_in_the_middle_says_what_may_be_missing() -> None:
    found = Resuming()
    found.explained(error := ValueError("min() arg is an empty sequence"))
    assert not hasattr(error, "__notes__")
    found.late = True
    found.explained(error)
    assert "run.track" in error.__notes__[0]
    found.explained(other := OSError("no such file"))
    assert not hasattr(other, "__notes__")


def test_workers_that_come_to_other_gradients_for_one_batch_are_refused() -> None:
    mine, names = [(0.5, 2.0), None], ["model/weight", "model/bias"]
    rehearsal.agree([mine, [(0.5000001, 2.0), None]], names)  # another kind of processor
    rehearsal.agree([mine, [(float("nan"), float("nan")), None]], names)
    for other in ([(0.4, 2.0), None], [(0.5, 2.0), (0.1, 0.1)]):
        with pytest.raises(Usage, match="different gradients of model/") as found:
            rehearsal.agree([mine, mine, other], names)
        assert "process id" in str(found.value)


def test_what_was_rehearsed_travels_with_the_words_of_a_step() -> None:
    said = [
        step_records.spell({0: step_records.LaneRecord(count=1)}, b"", None, [(1.0, 2.0), None]),
        step_records.spell({1: step_records.LaneRecord(count=1)}, None, None, None),
    ]
    assert step_records.gather(said, 2).prints == [[[1.0, 2.0], None]]


def test_states_are_compared_when_hooks_have_run_for_the_first_time() -> None:
    assert divergence.due(1)
    assert not divergence.due(3)


# --- entering a stream ----------------------------------------------------------------------------


class Stream(IterableDataset[Any]):
    """A lane's samples, with noise that depends on what was read before, or does not."""

    def __init__(self, *, pure: bool) -> None:
        self.pure = pure

    def __iter__(self) -> Iterator[Any]:
        return self.start(0, 1, 0, 0)

    def start(self, lane: int, lanes: int, epoch: int, at: int) -> Iterator[Any]:
        for number in range(at, 12):
            key = f"{epoch} {lane} {number if self.pure else at}"
            yield torch.full((3,), random.Random(key).random()), torch.tensor(number % 2)


@pytest.mark.parametrize("pure", [True, False])
def test_a_stream_that_gives_other_samples_when_it_is_entered_is_refused(pure: bool) -> None:
    def script(run: Run) -> None:
        model = learner(run)
        for batch in run.batches(Stream(pure=pure), lane_batch=2):
            run.step(loss_of(model, batch))

    if pure:
        alone(script)
        return
    with pytest.raises(Usage, match="the data gives other samples when it is entered"):
        alone(script)


def test_a_reader_of_files_that_draws_at_random_is_refused_and_told_of_collate() -> None:
    def read(_file: int) -> Iterator[Any]:
        for number in range(6):
            yield torch.full((3,), random.random()), torch.tensor(number % 2)

    def script(run: Run) -> None:
        model = learner(run)
        for batch in run.batches(Sharded(list(range(8)), read=read), lane_batch=2):
            run.step(loss_of(model, batch))

    with pytest.raises(Usage, match="draw in collate"):
        alone(script)


# --- weights and optimizers -----------------------------------------------------------------------


def test_a_body_that_puts_another_parameter_into_a_model_is_refused() -> None:
    def script(run: Run) -> None:
        model = learner(run)
        for batch in run.batches(Rows(16), lane_batch=2):
            model.weight = nn.Parameter(model.weight.detach() * 0.5)
            run.step(loss_of(model, batch))

    with pytest.raises(Usage, match="put another tensor into the place of the weight model/weight"):
        alone(script)


def test_a_hook_of_a_parameter_that_drops_its_gradient_is_refused() -> None:
    def script(run: Run) -> None:
        model = nn.Linear(3, 2)

        def drop(parameter: torch.Tensor) -> None:
            parameter.grad = None

        model.weight.register_post_accumulate_grad_hook(drop)
        run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        for batch in run.batches(Rows(16), lane_batch=2):
            run.step(loss_of(model, batch))

    with pytest.raises(Usage, match="a hook of a parameter took its gradient away"):
        alone(script)


class Wrapping(torch.optim.SGD):
    """Says in its own words what there is to keep."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.slow = torch.zeros(2)

    def state_dict(self) -> dict[str, Any]:
        return {"plain": super().state_dict(), "slow": self.slow}

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state["plain"])
        self.slow = state["slow"]


def test_an_optimizer_with_a_state_dict_of_its_own_is_handed_over_with_it() -> None:
    def tracked(slow: float, rate: float) -> tuple[Tracked, Wrapping]:
        model = nn.Linear(2, 1)
        optimizer = Wrapping(model.parameters(), lr=rate)
        optimizer.slow.fill_(slow)
        found = Tracked()
        found.add("model", model)
        found.add("optimizer", optimizer)
        return found, optimizer

    (one, _), (other, optimizer) = tracked(3.0, 0.5), tracked(0.0, 0.1)
    entries, skeletons = one.entries()
    other.adopt(TrainingState.of(0, entries), skeletons)
    assert optimizer.slow.tolist() == [3.0, 3.0]
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_the_rate_of_a_dropout_that_a_hook_sets_is_handed_over() -> None:
    def tracked(rate: float) -> tuple[Tracked, nn.Dropout]:
        dropout = nn.Dropout(rate)
        model = nn.Sequential(nn.Linear(2, 1), dropout)
        found = Tracked()
        found.add("model", model)

        def relax(_run: object) -> None:
            dropout.p = 0.1

        found.carry(stored_by(relax))
        return found, model[1]  # type: ignore[return-value]

    (one, _), (other, dropout) = tracked(0.3), tracked(0.5)
    entries, skeletons = one.entries()
    other.adopt(TrainingState.of(0, entries), skeletons)
    assert dropout.p == 0.3


def test_a_parameter_of_no_elements_is_handed_over() -> None:
    fill(torch.zeros(0, 3), entry("empty", torch.zeros(0, 3)))
