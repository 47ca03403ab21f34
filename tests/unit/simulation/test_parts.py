"""The disk, the blobs, the arithmetic, the checks, the search."""

from __future__ import annotations

import json
from random import Random

import pytest

from holdfast.agent.events import Forgotten, Key, TermSeen
from holdfast.wire.reports import Part
from simulation.__main__ import main
from simulation.arithmetic import contribution, following, undisturbed
from simulation.blobs import Blobs, Manifest, Share
from simulation.disk import Disk
from simulation.faults import COUNTS_MAX, RATES_MAX
from simulation.mutants import MUTANTS, hunt
from simulation.search import shrink, told
from simulation.settings import drawn
from simulation.world import World


def test_a_torn_write_is_read_back_whole_or_not_at_all_and_never_again_later() -> None:
    found = set()
    for seed in range(40):
        disk = Disk()
        disk.append([TermSeen(1)])
        disk.append([Forgotten(Key("job", 1)), Forgotten(Key("job", 2))])
        disk.tear([TermSeen(2)], Random(seed))
        entries = disk.recovered()
        assert entries[:3] == [
            TermSeen(1),
            Forgotten(Key("job", 1)),
            Forgotten(Key("job", 2)),
        ]
        found.add(len(entries))
        disk.append([TermSeen(3)])
        assert disk.recovered() == [*entries, TermSeen(3)]
    assert found == {3, 4}


def test_a_step_is_the_same_whoever_brings_the_lanes_in_whatever_order() -> None:
    states = undisturbed(job=0, lanes=4, steps=1)
    lanes = [contribution(states[0], 1, lane) for lane in range(4)]
    assert following(states[0], reversed(lanes)) == states[1]


@pytest.mark.parametrize("lanes", [[0, 1, 2], [0, 1, 2, 3, 3], [0, 1, 2, 4]])
def test_a_lane_missing_doubled_or_strange_gives_another_state(lanes: list[int]) -> None:
    states = undisturbed(job=0, lanes=4, steps=1)
    brought = [contribution(states[0], 1, lane) for lane in lanes]
    assert following(states[0], brought) != states[1]


def test_jobs_and_steps_have_states_of_their_own() -> None:
    states = [*undisturbed(job=0, lanes=2, steps=20), *undisturbed(job=1, lanes=2, steps=20)]
    assert len(set(states)) == len(states)


def manifest(*shares: Share) -> tuple[Blobs, str]:
    blobs = Blobs()
    parts = []
    for share in shares:
        key = f"{share.step}/{share.which}of{share.shares}"
        blobs.put(key, share)
        parts.append(Part(key, 8, ""))
    blobs.put("manifest", Manifest(5, tuple(parts)))
    return blobs, "manifest"


def test_a_checkpoint_with_all_its_shares_can_be_read() -> None:
    blobs, key = manifest(Share(5, 77, 0, 2), Share(5, 77, 1, 2))
    assert blobs.read_whole(key) == (5, 77, ())


@pytest.mark.parametrize(
    ("shares", "why"),
    [
        ((Share(5, 77, 0, 2),), "it has the shares"),
        ((Share(5, 77, 0, 2), Share(5, 78, 1, 2)), "different states"),
        ((Share(4, 77, 0, 1),), "its parts are of step 4"),
        ((), "different states"),
    ],
)
def test_a_checkpoint_that_is_not_whole_says_why(shares: tuple[Share, ...], why: str) -> None:
    blobs, key = manifest(*shares)
    assert why in str(blobs.read_whole(key))


def test_a_checkpoint_whose_part_was_removed_cannot_be_read() -> None:
    blobs, key = manifest(Share(5, 77, 0, 1))
    blobs.remove("5/0of1")
    assert blobs.read_whole(key) == "part 5/0of1 is missing"
    assert blobs.read_whole("other") == "there is no manifest other"


def test_seeds_draw_worlds_of_all_sizes_and_every_job_fits_into_its_world() -> None:
    worlds = [drawn(seed) for seed in range(300)]
    assert {len(world.coordinators) for world in worlds} == {1, 2, 3}
    assert {len(world.hosts) for world in worlds} == {1, 2, 3, 4}
    assert {len(world.trainings) - len(world.services) for world in worlds} == {1, 2}
    assert {len(world.services) for world in worlds} == {0, 1}
    for world in worlds:
        room = sum(host.cpu for host in world.hosts.values())
        for training in world.trainings.values():
            assert 1 <= training.spec.workers_min <= training.spec.workers_max
            assert training.spec.serves or training.spec.workers_max <= training.spec.lanes
            assert training.spec.workers_min * training.spec.resources.cpu <= room


def test_a_service_never_takes_what_a_training_cannot_do_without() -> None:
    for world in (drawn(seed) for seed in range(300)):
        room = sum(host.cpu for host in world.hosts.values())
        least = max(one.spec.workers_min for one in world.trainings.values())
        assert sum(world.services.values()) + least <= room


def test_a_world_without_faults_trains_each_job_once() -> None:
    calm = frozenset({*RATES_MAX, *COUNTS_MAX})
    for seed in range(1, 21):
        world = World(seed, calm)
        verdict = world.run()
        assert verdict.ok, told(verdict, calm)
        assert verdict.faults == ()


def test_a_failing_seed_is_made_small_and_still_breaks_the_same_rule() -> None:
    mutant = next(one for one in MUTANTS if one.name == "commit over a view")
    found = hunt(mutant)
    assert found.verdict is not None
    with mutant.on():
        small, off = shrink(found.verdict)
    assert small.rule == found.verdict.rule
    assert len(small.faults) < len(found.verdict.faults)
    text = told(small, off)
    assert f"python -m simulation --seed {small.seed} --off" in text
    assert small.rule in text


def test_a_mutant_leaves_nothing_behind() -> None:
    for mutant in MUTANTS:
        before = [getattr(where, what) for where, what, _ in mutant.patches]
        with mutant.on():
            assert [getattr(where, what) for where, what, _ in mutant.patches] != before
        assert [getattr(where, what) for where, what, _ in mutant.patches] == before


def test_a_replay_tells_the_story_and_ends_with_zero_when_nothing_is_wrong(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--seed", "3"]) == 0
    shown = capsys.readouterr().out
    assert "leads in term" in shown
    assert "seed 3: nothing is wrong" in shown
    assert main(["--seed", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rule"] == ""


def test_a_search_that_finds_something_says_how_to_replay_it_and_ends_with_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    mutant = next(one for one in MUTANTS if one.name == "early commit")
    with mutant.on():
        assert main(["--seeds", "3"]) == 1
        assert main(["--seeds", "3", "--json"]) == 1
    *text, summary = capsys.readouterr().out.strip().splitlines()
    assert any("replay: python -m simulation --seed" in line for line in text)
    assert json.loads(summary)["failures"]


def test_a_search_reports_its_rate(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "2", "--from", "40", "--minutes", "1"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("2 schedules, 0 failed;")
    assert "schedules/s" in shown
    assert "faults injected" in shown
