"""Members: real processes that are killed in every phase; the answer stays right.

What a run must come to is what `examples/counter.py --expected` computes in one loop.
"""

from __future__ import annotations

import re
import resource
import signal
from pathlib import Path

import pytest

from holdfast.wire.limits import PEER_SILENCE_S
from tests.faults.members_stage import Stage

BALLAST_BYTES = 400 * 1024 * 1024  # a hand-over takes a while
BALLAST = ("--ballast", str(BALLAST_BYTES))


def memory_bytes(pid: int) -> int:
    """What a process has in memory now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def ends_right(stage: Stage, steps: int, *more: str) -> None:
    """Let it come to its end, and compare."""
    stage.end(steps)
    assert stage.the_answer() == stage.right_answer(*more)


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_any_number_of_workers_comes_to_the_same_answer(tmp_path: Path, workers: int) -> None:
    with Stage(tmp_path, steps=30, step_ms=2, lanes=7) as stage:
        stage.start(*range(workers))
        stage.move(range(workers), restore=0)
        ends_right(stage, 30)


def test_a_member_killed_while_lanes_are_computed_costs_only_its_own_lanes(tmp_path: Path) -> None:
    with Stage(tmp_path, steps=20, step_ms=300) as stage:
        stage.start(0, 1, 2, 3)
        stage.move(range(4), restore=0)
        stage.wait_for_step(3)
        stage.workers[2].kill()
        stage.move([0, 1, 3])
        ends_right(stage, 20)
        # Survivors keep their lanes, and say which are new: the dead one's two, and no others.
        new: list[int] = []
        for worker in (0, 1, 3):
            said = stage.workers[worker].output.read_text()
            for text in re.findall(r"view 2 .*, \[([0-9, ]+)\] are new", said):
                new += [int(lane) for lane in text.split(",")]
        assert sorted(new) == [4, 5]


def test_a_member_killed_before_and_during_the_first_meeting(tmp_path: Path) -> None:
    with Stage(tmp_path, steps=20, step_ms=5) as stage:
        stage.start(0, 1, 2)
        stage.workers[2].kill()
        stage.next_view([0, 1, 2], restore=0)
        stage.give(0, 1)  # they wait for one that is dead
        stage.wait("they have adopted", lambda: stage.workers[1].said["view"] == 1)
        stage.workers[0].kill()  # and now one dies that had met
        stage.start(3)
        stage.move([1, 3], restore=0)
        ends_right(stage, 20)


@pytest.mark.parametrize("victim", ["source", "taker"])
def test_a_member_killed_in_the_middle_of_a_hand_over(tmp_path: Path, victim: str) -> None:
    with Stage(tmp_path, steps=40, step_ms=20) as stage:
        stage.start(0, 1, more=BALLAST)
        stage.move([0, 1], restore=0)
        stage.wait_for_step(3)
        stage.start(2, more=BALLAST)
        taker = stage.workers[2]
        before = memory_bytes(taker.process.pid)
        stage.move([0, 1, 2])
        while memory_bytes(taker.process.pid) < before + BALLAST_BYTES // 20:
            assert taker.step < 0, "it was faster than we look"
        taker.signal(signal.SIGSTOP)
        assert memory_bytes(taker.process.pid) < before + BALLAST_BYTES * 9 // 10
        stage.workers[0 if victim == "source" else 2].kill()
        taker.signal(signal.SIGCONT)
        stage.move([1, 2] if victim == "source" else [0, 1])
        stage.wait_for_adoption()
        ends_right(stage, 40)


def test_a_member_killed_while_others_wait_for_its_sums(tmp_path: Path) -> None:
    with Stage(tmp_path, steps=60, step_ms=5) as stage:
        stage.start(0, 1, 2)
        stage.move([0, 1, 2], restore=0)
        stage.wait_for_step(5)
        stage.workers[1].signal(signal.SIGSTOP)
        stage.wait("the others wait", lambda: stage.workers[0].said["waits"])
        stage.workers[1].kill()
        stage.move([0, 2])
        ends_right(stage, 60)


def test_all_but_one_killed_at_once(tmp_path: Path) -> None:
    with Stage(tmp_path, steps=60, step_ms=5) as stage:
        stage.start(0, 1, 2, 3)
        stage.move(range(4), restore=0)
        stage.wait_for_step(10)
        for worker in (0, 1, 3):
            stage.workers[worker].kill()
        stage.move([2])
        ends_right(stage, 60)


def test_views_that_nobody_was_killed_for_are_adopted_one_after_the_other(tmp_path: Path) -> None:
    with Stage(tmp_path, steps=80, step_ms=5) as stage:
        stage.start(0, 1, 2, 3)
        stage.move([0], restore=0)
        for members in ([0, 1], [0, 1, 2, 3], [1, 2, 3], [0, 1, 2, 3][1:3]):
            stage.wait_for_step(stage.step + 5, *members[:1])
            stage.move(members)
            stage.wait_for_adoption()
        assert stage.workers[0].process.wait(60) == 0
        assert stage.workers[0].word == "left"
        ends_right(stage, 80)


def test_a_view_that_is_skipped_and_one_that_comes_late_do_no_harm(tmp_path: Path) -> None:
    with Stage(tmp_path, steps=80, step_ms=5) as stage:
        stage.start(0, 1, 2)
        stage.move([0, 1], restore=0)
        stage.wait_for_step(5)
        stage.next_view([0, 1, 2])
        stage.give(0, 2)  # worker 1 does not hear of view 2
        stage.wait("they wait in view 2", lambda: stage.workers[0].said["view"] == 2)
        stage.next_view([0, 1, 2])
        stage.give(1)  # but of view 3, before the others
        stage.wait("it waits in view 3", lambda: stage.workers[1].said["view"] == 3)
        stage.give(0, 2)
        stage.wait_for_adoption()
        ends_right(stage, 80)


def test_a_member_that_is_behind_takes_the_state_of_the_most_advanced(tmp_path: Path) -> None:
    # The higher one is stopped when the others have all they need of it; it is behind by a step
    # more often than not. Whatever it holds, all go on from the same.
    with Stage(tmp_path, steps=400, step_ms=5) as stage:
        stage.start(0, 1, 2)
        stage.move([0, 1, 2], restore=0)
        for turn in range(6):
            stage.wait_for_step(stage.step + 4, 0)
            stage.workers[2].signal(signal.SIGSTOP)
            stage.wait_for_step(stage.workers[0].step, 1)
            stage.next_view([0, 1, 2])
            stage.give(0, 1)
            stage.workers[2].signal(signal.SIGCONT)
            stage.give(2)
            stage.wait_for_adoption()
            assert stage.view is not None and stage.view.number == turn + 2
        ends_right(stage, 400)


def test_a_stopped_peer_is_suspected_and_nobody_hangs(tmp_path: Path) -> None:
    with Stage(tmp_path, steps=60, step_ms=5) as stage:
        stage.start(0, 1, 2)
        stage.move([0, 1, 2], restore=0)
        stage.wait_for_step(5)
        stage.workers[1].signal(signal.SIGSTOP)
        stage.wait(
            "both others suspect it",
            lambda: (
                stage.workers[0].said["suspects"] == [1]
                and stage.workers[2].said["suspects"] == [1]
            ),
            within_s=60 + 3 * PEER_SILENCE_S,
        )
        assert stage.workers[0].said["waits"]
        stage.move([0, 2])
        stage.wait_for_adoption()
        assert stage.workers[0].said["suspects"] == []
        stage.workers[1].signal(signal.SIGCONT)  # it wakes in a view that it is not in any more
        assert stage.workers[1].process.wait(60) == 0
        ends_right(stage, 60)


def test_a_removed_peer_that_is_frozen_does_not_hold_up_the_next_view(tmp_path: Path) -> None:
    with Stage(tmp_path, steps=60, step_ms=5) as stage:
        stage.start(0, 1, 2)
        stage.move([0, 1, 2], restore=0)
        stage.wait_for_step(5)
        stage.workers[1].signal(signal.SIGSTOP)
        stage.wait("they wait for it", lambda: stage.workers[0].said["waits"])
        stage.move([0, 2])
        stage.wait_for_adoption()
        # The view was enough: nobody had to find out by silence.
        assert stage.workers[0].suspected == stage.workers[2].suspected == set()
        ends_right(stage, 60)


def test_a_peer_that_wakes_up_before_anybody_acts_goes_on_with_the_others(tmp_path: Path) -> None:
    with Stage(tmp_path, steps=60, step_ms=5) as stage:
        stage.start(0, 1)
        stage.move([0, 1], restore=0)
        stage.wait_for_step(5)
        stage.workers[1].signal(signal.SIGSTOP)
        stage.wait(
            "it is suspected",
            lambda: stage.workers[0].said["suspects"] == [1],
            within_s=60 + 3 * PEER_SILENCE_S,
        )
        stage.workers[1].signal(signal.SIGCONT)
        stage.wait_for_step(20)
        assert stage.workers[0].said["suspects"] == []
        assert stage.workers[1].suspected == set(), "who was asleep accuses nobody"
        ends_right(stage, 60)


def test_a_member_killed_at_the_end_is_not_missed(tmp_path: Path) -> None:
    with Stage(tmp_path, steps=15, step_ms=5) as stage:
        stage.start(0, 1, 2)
        stage.move([0, 1, 2], restore=0)
        stage.wait_for_step(15)
        stage.wait("all wait", lambda: all(w.said["ending"] for w in stage.workers.values()))
        stage.workers[0].kill()
        stage.start(3)  # it joins at the last step, and has nothing to compute
        stage.move([1, 2, 3])
        stage.wait_for_adoption()
        ends_right(stage, 15)


def test_whoever_is_told_to_go_before_the_last_step_is_committed_does_not_say_done(
    tmp_path: Path,
) -> None:
    """By `holdfast down`, for instance: what nobody has committed is made again after it."""
    with Stage(tmp_path, steps=10, step_ms=2) as stage:
        stage.start(0, 1)
        stage.move([0, 1], restore=0)
        both = list(stage.workers.values())
        stage.wait("both wait at the end", lambda: all(one.said.get("ending") for one in both))
        stage.next_view([0])  # a new view comes just then, without one of them
        stage.give()
        stage.workers[0].signal(signal.SIGTERM)
        stage.wait("both are gone", lambda: not any(one.alive for one in both))
        assert [one.process.returncode for one in both] == [0, 0]
        assert [one.word for one in both] == ["left", "left"]


def test_whoever_is_asked_to_leave_does_so_at_a_boundary_with_the_word_left(tmp_path: Path) -> None:
    with Stage(tmp_path, steps=60, step_ms=10) as stage:
        stage.start(0, 1, 2)
        stage.move([0, 1, 2], restore=0)
        stage.wait_for_step(5)
        stage.workers[0].signal(signal.SIGTERM)  # as when its machine is taken away
        assert stage.workers[0].process.wait(60) == 0
        assert stage.workers[0].word == "left"
        stage.move([1, 2])
        ends_right(stage, 60)
