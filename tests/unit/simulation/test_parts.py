"""The disk, the blobs, the arithmetic, the checks, what a leader remembers."""

from __future__ import annotations

import subprocess
import sys
from random import Random

import pytest

from holdfast.agent.events import Entry, Forgotten, Key, TermSeen
from holdfast.agent.journal import Journal
from holdfast.control.decide.schedule import plan
from holdfast.train.members.effective import EffectiveSetting
from holdfast.wire.errors import Corrupt
from holdfast.wire.reports import Part
from simulation import decide
from simulation.aio import Killed
from simulation.arithmetic import Undisturbed, contribution, following, setting_of, summed
from simulation.blobs import Blobs, Manifest, Share
from simulation.disk import Disk
from simulation.faults import BIRTHS_MAX, COUNTS_MAX, RATES_MAX
from simulation.search import failure_report
from simulation.settings import drawn
from simulation.world import CONTROL, World

FIRST: list[Entry] = [TermSeen(1)]
SECOND: list[Entry] = [Forgotten(Key("job", 1)), Forgotten(Key("job", 2))]


class Torn:
    """A disk on which a write may be torn: so much of it is there, and its writer is dead."""

    def __init__(self) -> None:
        self.share: float | None = None
        self.disk = Disk(lambda: (self.share, self._die))
        journal = self.opened()[0]
        journal.append(FIRST)
        journal.append(SECOND)

    def _die(self) -> None:
        if self.share is not None:
            raise Killed

    def opened(self) -> tuple[Journal, list[Entry]]:
        journal, recovery = Journal.recover(self.disk)
        return journal, recovery.entries


def test_a_torn_write_is_read_back_whole_or_not_at_all_and_never_again_later() -> None:
    found = set()
    for share in (0.0, 0.1, 0.5, 0.9, 1.0):
        torn = Torn()
        torn.share = share
        with pytest.raises(Killed):
            torn.opened()[0].append([TermSeen(2)])
        torn.share = None
        journal, entries = torn.opened()
        assert entries[:3] == [*FIRST, *SECOND]
        assert not torn.disk.forgot
        found.add(len(entries))
        journal.append([TermSeen(3)])
        assert torn.opened()[1] == [*entries, TermSeen(3)]
    assert found == {3, 4}


def test_what_was_not_synced_is_lost_with_the_machine_and_not_with_its_agent() -> None:
    for fails in (True, False):
        torn = Torn()
        size = torn.opened()[0].size_bytes
        torn.disk.write(b"?" * 10, size)
        if fails:
            torn.disk.lose_power()
        assert len(torn.disk.read() or b"") == size + (0 if fails else 10)


def test_a_flipped_bit_is_refused_or_costs_the_last_batch_and_nothing_else() -> None:
    seen = set()
    for seed in range(200):
        torn = Torn()
        torn.disk.flip(Random(seed))
        try:
            entries = torn.opened()[1]
        except Corrupt:
            seen.add("refused")
            continue
        assert torn.disk.forgot
        assert entries == FIRST
        seen.add("without the last batch")
        assert torn.opened()[1] == FIRST
    assert seen == {"refused", "without the last batch"}


def test_a_compacted_journal_has_only_what_it_was_given() -> None:
    torn = Torn()
    torn.opened()[0].compact([TermSeen(9)])
    assert torn.opened()[1] == [TermSeen(9)]
    assert torn.disk.records() == [{"kind": "term", "term": 9}]


LANES = 5
START = Undisturbed(job=0, lanes=LANES, steps=3).state(0, ())
FIRST_STEP = Undisturbed(job=0, lanes=LANES, steps=3).state(1, ())


def own(*lanes: int) -> dict[int, int]:
    assert START is not None
    return {lane: contribution(START, 1, lane) for lane in lanes}


@pytest.mark.parametrize(
    "held",
    [[[0, 1, 2, 3, 4]], [[0, 1], [2, 3, 4]], [[3], [0, 4], [1, 2]], [[4], [3], [2], [1], [0]]],
)
def test_a_step_is_the_same_whoever_brings_the_lanes(held: list[list[int]]) -> None:
    assert START is not None
    brought = [summed(own(*lanes), lanes, LANES) for lanes in held]
    assert following(START, brought, LANES) == FIRST_STEP
    assert following(START, reversed(brought), LANES) == FIRST_STEP


def test_the_same_lanes_in_another_order_of_summation_give_another_state() -> None:
    assert START is not None
    lanes = range(LANES)
    mine = own(*lanes)
    swapped = {**mine, 0: mine[1], 1: mine[0]}
    assert following(START, [summed(swapped, lanes, LANES)], LANES) != FIRST_STEP


def test_a_lane_that_two_bring_gives_another_state() -> None:
    assert START is not None
    brought = [summed(own(*lanes), lanes, LANES) for lanes in ([0, 1], [2, 3], [4], [4])]
    assert following(START, brought, LANES) != FIRST_STEP


def test_a_step_depends_on_the_settings_that_are_in_effect() -> None:
    record = (EffectiveSetting("lr", "0.1", 0), EffectiveSetting("lr", "0.2", 2))
    assert setting_of(record, 1) != setting_of(record, 2)
    run = Undisturbed(job=0, lanes=2, steps=3)
    assert run.state(1, record) == run.state(1, record[:1]) != run.state(1, ())
    assert run.state(2, record) != run.state(2, record[:1])
    assert run.state(4, ()) is None


def test_jobs_and_steps_have_states_of_their_own() -> None:
    states = [
        Undisturbed(job, lanes=2, steps=20).state(step, ()) for job in (0, 1) for step in range(21)
    ]
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


def test_seeds_draw_one_storm_or_several() -> None:
    worlds = [drawn(seed) for seed in range(100)]
    assert {len(world.storms_s) for world in worlds} == {1, 2, 3}
    for world in worlds:
        assert all(action.at_s < sum(world.storms_s) for action in world.actions)


def test_seeds_draw_worlds_of_all_sizes_and_every_job_fits_into_its_world() -> None:
    worlds = [drawn(seed) for seed in range(300)]
    assert {len(world.coordinators) for world in worlds} == {1, 2, 3}
    assert {len(world.hosts) for world in worlds} == {1, 2, 3, 4}
    assert {len(world.trainings) - len(world.services) for world in worlds} == {1, 2}
    assert {len(world.services) for world in worlds} == {0, 1}
    for world in worlds:
        capacity = sum(host.cpu for host in world.hosts.values())
        for training in world.trainings.values():
            assert 1 <= training.spec.workers_min <= training.spec.workers_max
            assert training.spec.serves or training.spec.workers_max <= training.spec.lanes
            assert training.spec.workers_min * training.spec.resources.cpu <= capacity


def test_a_service_never_takes_what_a_training_cannot_do_without() -> None:
    for world in (drawn(seed) for seed in range(300)):
        capacity = sum(host.cpu for host in world.hosts.values())
        least = max(one.spec.workers_min for one in world.trainings.values())
        assert sum(world.services.values()) + least <= capacity


def test_a_world_without_faults_trains_each_job_once() -> None:
    calm = frozenset({*RATES_MAX, *COUNTS_MAX, *BIRTHS_MAX})
    for seed in range(1, 21):
        verdict = CONTROL.run(seed, calm)
        assert verdict.ok, failure_report(CONTROL, verdict, calm)
        assert verdict.faults == ()


def test_what_a_leader_remembers_of_its_plan_is_what_it_would_plan_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remembered = 0
    planned = decide.Decider._planned

    def compared(self: decide.Decider, desired, capacities, now_s):  # type: ignore[no-untyped-def]
        nonlocal remembered
        before = self._plan
        made = planned(self, desired, capacities, now_s)
        remembered += made is before
        assert made == plan(list(desired.jobs.values()), capacities, desired.queues, now_s)
        return made

    monkeypatch.setattr(decide.Decider, "_planned", compared)
    for seed in range(1, 31):
        assert World(seed).run().ok
    assert remembered


def test_the_simulator_runs_the_real_agent_without_what_pypy_has_not() -> None:
    program = (
        "import sys\n"
        "for name in ('msgspec', 'grpc', 'torch', 'structlog', 'cryptography'):\n"
        "    sys.modules[name] = None\n"
        "import simulation.world\n"
        "assert all(simulation.world.run(seed).ok for seed in range(1, 9))\n"
        "from pathlib import Path\n"
        "from holdfast.agent import journal\n"
        "from holdfast.agent.events import TermSeen\n"
        "raw = journal.written([[TermSeen(1)]], b'8 bytes.')\n"
        "assert journal.recovered(Path('j'), raw).entries == [TermSeen(1)]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
