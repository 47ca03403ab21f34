"""States as bytes: read by plain safetensors, cut into parts and put together again."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.train.states import checkpoints
from holdfast.train.states.checkpoints import Assembly, parts_of, share_buffers, shares_of
from holdfast.train.states.state import StateEntry, TrainingState
from holdfast.wire.errors import Corrupt, Usage

DTYPES = {"F32": np.float32, "F64": np.float64, "I64": np.int64, "U8": np.uint8, "F16": np.float16}


def entry(
    name: str, dtype: str = "F32", shape: tuple[int, ...] = (3, 2), seed: int = 0
) -> StateEntry:
    size = int(np.prod(shape)) * np.dtype(DTYPES[dtype]).itemsize
    return StateEntry.of(name, dtype, shape, random.Random(f"{name} {seed}").randbytes(size))


def sample(step: int = 7) -> TrainingState:
    entries = [
        entry("optimizer/exp_avg"),
        entry("model/weight", "F64", (4, 5)),
        entry("model/bias", "U8", (3,)),
        entry("model/scalar", "I64", ()),
        entry("model/empty", "F32", (0, 9)),
        entry("model/half", "F16", (5,)),
    ]
    return TrainingState.of(step, entries, {"epoch": 2, "lr": (0.1).hex()})


def joined(buffers: list[memoryview]) -> bytes:
    return b"".join(buffers)


def test_a_state_is_a_safetensors_file_that_the_package_reads(tmp_path: Path) -> None:
    state, path = sample(), tmp_path / "state.safetensors"
    path.write_bytes(joined(state.buffers()))
    found = safetensors.numpy.load_file(path)
    assert sorted(found) == [each.name for each in state.entries]
    for each in state.entries:
        assert found[each.name].tobytes() == bytes(each.data)
        assert found[each.name].shape == each.shape
        assert found[each.name].dtype == DTYPES[each.dtype]


def test_a_state_is_read_back_as_it_was_without_copies() -> None:
    data = joined(sample().buffers())
    found = TrainingState.read(memoryview(data))
    assert found == sample()
    assert found.digest() == sample().digest()
    assert all(each.data.obj is data for each in found.entries)


def test_what_safetensors_wrote_can_be_read() -> None:
    arrays: dict[str, np.ndarray] = {
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.ones(2, dtype=np.int64),
    }
    data = safetensors.numpy.save(arrays, {"holdfast": '{"step": 3, "notes": {}}'})
    found = TrainingState.read(memoryview(data))
    assert [each.name for each in found.entries] == ["a", "b"]
    assert bytes(found["b"].data) == arrays["b"].tobytes()


@pytest.mark.parametrize(
    "change",
    [
        lambda state: TrainingState(state.step + 1, state.entries, state.notes),
        lambda state: TrainingState(state.step, state.entries, {**state.notes, "epoch": 3}),
        lambda state: TrainingState(state.step, state.entries[1:], state.notes),
        lambda state: TrainingState.of(
            state.step, [*state.entries[1:], entry("model/bias", "U8", (3,), 1)]
        ),
    ],
    ids=["step", "notes", "an entry less", "other bytes"],
)
def test_the_digest_tells_states_apart(change: object) -> None:
    state = sample()
    assert change(state).digest() != state.digest()  # type: ignore[operator]


def test_bytes_that_are_cut_off_anywhere_are_refused() -> None:
    data = joined(sample().buffers())
    for size in range(0, len(data), 7):
        with pytest.raises(Corrupt):
            TrainingState.read(memoryview(data[:size]))


def test_an_entry_whose_bytes_do_not_fit_its_shape_is_refused() -> None:
    with pytest.raises(Usage, match="flat bytes"):
        StateEntry.of("w", "F32", (3,), bytes(11))
    with pytest.raises(Usage, match="does not know"):
        StateEntry.of("w", "float32", (1,), bytes(4))


sizes = st.lists(st.integers(0, 3_000), min_size=1, max_size=30)


@settings(deadline=None)
@given(sizes, st.integers(1, 9), st.randoms(use_true_random=False))
def test_shares_in_any_order_give_the_state_back(
    rows: list[int], shares: int, chance: random.Random
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "PART_GROUP_BYTES", 2_000)
        patch.setattr(parts_of, "__defaults__", (4_000,))
        state = TrainingState.of(
            3, [entry(f"e{n % 3}/{n}", "F32", (r, 2)) for n, r in enumerate(rows)]
        )
        parts = [
            joined(part) for share in range(shares) for part in share_buffers(state, share, shares)
        ]
        chance.shuffle(parts)
        assembly = Assembly()
        for part in parts:
            safetensors.numpy.load(part)
            assembly.add(part)
        assert assembly.state() == state
        missing = chance.randrange(len(parts))
        broken = Assembly()
        for place, part in enumerate(parts):
            if place != missing:
                broken.add(part)
        with pytest.raises(Corrupt):
            broken.state()


def test_a_large_entry_is_cut_into_pieces_that_say_what_they_are() -> None:
    large = entry("model/large", "F32", (100, 10))
    parts = [checkpoints.part_buffers(plan) for plan in _cut_small([large])]
    names = [name for part in parts for name in safetensors.numpy.load(joined(part))]
    assert names == [f"model/large[{at}:{min(at + 30, 100)}]" for at in range(0, 100, 30)]


def _cut_small(entries: list[StateEntry]) -> list[checkpoints.PartPlan]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "PART_GROUP_BYTES", 100)
        return parts_of(entries, 1_200)


def test_an_unchanged_entry_gives_the_same_part_at_every_step_and_for_every_number_of_shares() -> (
    None
):
    frozen = entry("frozen/weight", "F32", (1_000, 600))

    def parts(step: int, shares: int) -> set[bytes]:
        moving = entry("moving/weight", "F32", (1_000, 600), seed=step)
        state = TrainingState.of(step, [frozen, moving], {"step": step})
        return {
            joined(part) for share in range(shares) for part in share_buffers(state, share, shares)
        }

    both = parts(1, 2) & parts(2, 5)
    assert len(both) == 1
    assert list(safetensors.numpy.load(both.pop())) == ["frozen/weight"]


@given(st.lists(st.integers(1, 500), min_size=1, max_size=40), st.integers(1, 8))
def test_shares_are_balanced_by_bytes(rows: list[int], shares: int) -> None:
    plans = [(checkpoints.Rows(entry(f"e{n:02}", "U8", (r,)), 0, r),) for n, r in enumerate(rows)]
    found = shares_of(plans, shares)
    assert sorted(place for places in found for place in places) == list(range(len(plans)))
    load = [sum(rows[place] for place in places) for places in found]
    assert max(load) <= sum(rows) / shares + max(rows)


def test_a_checkpoint_with_a_part_too_many_is_refused() -> None:
    state, other = sample(), TrainingState.of(7, [entry("stranger")])
    assembly = Assembly()
    for part in [*share_buffers(state, 0, 1), *list(share_buffers(other, 0, 1))[1:]]:
        assembly.add(joined(part))
    with pytest.raises(Corrupt, match="stranger"):
        assembly.state()
