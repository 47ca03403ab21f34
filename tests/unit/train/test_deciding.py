"""What members conclude: the source of the state, the steps of settings, who is wrong."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.train.members.effective import EffectiveSetting, extended, in_effect, lineage
from holdfast.train.members.greeting import Epoch, Hello
from holdfast.train.members.meeting import Conclusion, conclude
from holdfast.train.states import divergence
from holdfast.train.states.divergence import HASH_STEPS, Disagreement, judge, turn_of
from holdfast.train.states.state import StateEntry, TrainingState


def hello(worker: int, step: int | None, record: tuple[EffectiveSetting, ...] = ()) -> Hello:
    return Hello("meet", "job", worker, -1, Epoch(1, 0), step, record)


def brought(*steps: int | None) -> dict[int, Hello]:
    return {worker: hello(worker, step) for worker, step in enumerate(steps)}


def test_the_most_advanced_gives_its_state_and_the_lowest_among_equals() -> None:
    assert conclude(brought(5, 6, 6, None)) == Conclusion(1, (0, 3))
    assert conclude(brought(4, 4, 4)) == Conclusion(0, ())
    assert conclude(brought(None, 0)) == Conclusion(1, (0,))


def test_nobody_with_a_state_is_no_source() -> None:
    assert conclude(brought(None, None)) == Conclusion(None)


def test_the_same_step_under_other_settings_is_another_state() -> None:
    old, new = EffectiveSetting("lr", "1", 3), EffectiveSetting("lr", "2", 6)
    members = {0: hello(0, 6, (old, new)), 1: hello(1, 6, (old,)), 2: hello(2, 6, (old, new))}
    assert conclude(members) == Conclusion(0, (1,))
    later = EffectiveSetting("lr", "2", 7)  # it has not had an influence on step 6
    members = {0: hello(0, 6, (old, later)), 1: hello(1, 6, (old,))}
    assert conclude(members) == Conclusion(0, ())


def test_a_new_setting_takes_effect_after_the_agreed_step_but_not_before_its_own() -> None:
    given_ = [("a", "1", 0), ("b", "2", 9), ("c", "3", 2)]
    record = extended((), given_, 3, agreed=4)
    assert record == (
        EffectiveSetting("a", "1", 5),
        EffectiveSetting("b", "2", 9),
        EffectiveSetting("c", "3", 5),
    )
    assert extended(record[:1], given_, 2, agreed=20)[1] == EffectiveSetting("b", "2", 21)


def test_what_is_recorded_stays_whatever_is_agreed_later() -> None:
    record = (EffectiveSetting("a", "1", 5),)
    assert extended(record, [("a", "1", 0)], 1, agreed=50) == record


def test_a_setting_beyond_those_that_all_know_is_not_taken_yet() -> None:
    assert extended((), [("a", "1", 0), ("b", "2", 0)], 1, agreed=0) == (
        EffectiveSetting("a", "1", 1),
    )


def test_of_two_values_the_later_step_counts_then_the_later_said() -> None:
    record = (
        EffectiveSetting("lr", "x", 1),
        EffectiveSetting("lr", "at 9", 9),
        EffectiveSetting("lr", "y", 5),
    )
    assert [in_effect(record, step).get("lr") for step in (0, 1, 4, 5, 8, 9)] == [
        *(None, "x", "x", "y", "y", "at 9")
    ]
    assert in_effect((EffectiveSetting("lr", "x", 5), EffectiveSetting("lr", "y", 5)), 5) == {
        "lr": "y"
    }
    assert lineage(record, 5) == (record[0], record[2])


@given(st.lists(st.binary(min_size=1, max_size=1), min_size=1, max_size=9))
def test_a_majority_is_more_than_half_and_everyone_else_is_wrong(said: list[bytes]) -> None:
    verdict = judge(dict(enumerate(said)))
    votes = {digest: said.count(digest) for digest in said}
    best = max(votes, key=lambda digest: votes[digest])
    if votes[best] * 2 > len(said):
        right = [worker for worker, digest in enumerate(said) if digest == best]
        others = tuple(worker for worker, digest in enumerate(said) if digest != best)
        assert verdict == Disagreement(right[0], others)
    else:
        assert verdict.source is None


def test_a_large_state_is_gone_through_in_turns() -> None:
    entries = [StateEntry.of(f"e{n:02}", "U8", (60,), bytes(60)) for n in range(10)]
    seen = []
    for turn in range(5):
        state = TrainingState.of(turn * HASH_STEPS, entries)
        seen += [entry.name for entry in turn_of(state, limit_bytes=130)]
    assert sorted(seen) == [entry.name for entry in entries]


def test_digests_name_the_entry_that_differs() -> None:
    def of(byte: int) -> dict[str, bytes]:
        entries = [
            StateEntry.of("a", "U8", (1,), b"a"),
            StateEntry.of("b", "U8", (1,), bytes([byte])),
        ]
        state = TrainingState.of(1, entries)
        return dict(divergence.digests(state, state.entries))

    one, other = of(1), of(2)
    assert [name for name in one if one[name] != other[name]] == ["b"]
