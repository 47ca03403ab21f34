"""Names of bundles, numbers of removed jobs, and what a stop means, in the coordination plane."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.control.decide.facts import Intent, Phase, QueueQuota, RecordedStatus
from holdfast.control.decide.spec import JobSpec, Resources
from holdfast.control.store.bundles import BundlesInPlane, pin
from holdfast.control.store.codec import JobState, state_to
from holdfast.control.store.layout import state_path
from holdfast.control.store.plane import ControlPlane
from holdfast.coordination import Facts, Session
from holdfast.storage import open_store
from holdfast.storage.bundle_names import record_push, resolved
from holdfast.wire.errors import Conflict, Missing, Refused, Usage

DIGESTS = [f"sha256:{number:064x}" for number in range(30)]


@pytest.fixture
def names(session: Session) -> BundlesInPlane:
    return BundlesInPlane(session)


def test_each_push_is_a_version_and_the_last_is_current(names: BundlesInPlane) -> None:
    assert names.all() == {}
    for number, digest in enumerate(DIGESTS[:3], 1):
        assert record_push(names, "trainer", digest, 10, 1.0).number == number
    assert record_push(names, "trainer", DIGESTS[2], 10, 2.0).number == 3  # it is current already
    assert names.get("trainer").current == 3
    assert list(names.all()) == ["trainer"]


def test_a_rollback_moves_the_current_version_and_the_next_push_counts_on(
    names: BundlesInPlane,
) -> None:
    for digest in DIGESTS[:3]:
        record_push(names, "trainer", digest, 10, 1.0)
    assert names.roll_back("trainer").current == 2
    assert names.roll_back("trainer", 1).current == 1
    assert resolved(names.get("trainer")).digest == DIGESTS[0]
    with pytest.raises(Missing, match="no version before 1"):
        names.roll_back("trainer")
    with pytest.raises(Missing, match="no version 7"):
        names.roll_back("trainer", 7)
    assert record_push(names, "trainer", DIGESTS[5], 10, 2.0).number == 4


def test_of_two_who_write_at_once_one_is_told(names: BundlesInPlane) -> None:
    record_push(names, "trainer", DIGESTS[0], 10, 1.0)
    held, revision = names.read("trainer")
    assert held is not None
    record_push(names, "trainer", DIGESTS[1], 10, 1.0)
    with pytest.raises(Conflict):
        names.write(held, revision)


def test_everyone_who_pushes_at_once_gets_a_version_of_his_own(
    another: Callable[..., Session],
) -> None:
    sessions = [another() for _ in range(4)]

    def push(at: int) -> set[int]:
        mine = BundlesInPlane(sessions[at])
        digests = DIGESTS[at * 5 : at * 5 + 5]
        return {record_push(mine, "shared", digest, 1, 1.0).number for digest in digests}

    with ThreadPoolExecutor(4) as pool:
        got = [number for numbers in pool.map(push, range(4)) for number in numbers]
    assert sorted(got) == list(range(1, 21))


def test_a_reference_is_a_name_a_version_a_digest_or_a_folder(
    names: BundlesInPlane, tmp_path: Path
) -> None:
    blobs = open_store(f"file:{tmp_path / 'store'}")
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("print(1)\n")
    pushed = pin("./code", tmp_path, names, blobs)
    assert pushed.pushed is not None
    record_push(names, "trainer", pushed.digest, 10, 1.0)
    record_push(names, "trainer", DIGESTS[1], 10, 1.0)
    assert pin("trainer", tmp_path, names, blobs).digest == DIGESTS[1]
    assert pin("trainer@1", tmp_path, names, blobs).digest == pushed.digest
    assert pin(pushed.digest, tmp_path, names, blobs).digest == pushed.digest
    assert pin("code", tmp_path, names, blobs).digest == pushed.digest  # no such name: a folder
    (code / "train.py").write_text("print(2)\n")
    assert pin("code", tmp_path, names, blobs).digest != pushed.digest


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("trainr", "did you mean trainer"),
        ("./none", "there is no folder"),
        (DIGESTS[9], "the store has no bundle"),
        ("trainer@9", "no version 9"),
    ],
)
def test_a_reference_to_nothing_says_what_is_missing(
    names: BundlesInPlane, tmp_path: Path, reference: str, words: str
) -> None:
    record_push(names, "trainer", DIGESTS[0], 10, 1.0)
    with pytest.raises(Missing) as caught:
        pin(reference, tmp_path, names, open_store(f"file:{tmp_path / 'store'}"))
    assert words in str(caught.value)


def test_a_reference_that_cannot_be_a_name_is_wrong_usage(
    names: BundlesInPlane, tmp_path: Path
) -> None:
    with pytest.raises(Usage):
        pin("Trainer@x", tmp_path, names, open_store(f"file:{tmp_path / 'store'}"))


# --- a name that is used again ------------------------------------------------------------------

SPEC = JobSpec("train", ("python", "train.py"))


def end(session: Session, name: str, next_worker: int) -> None:
    """As a leader would have left it."""
    state = JobState(RecordedStatus(Phase.STOPPED, "it was stopped", 1.0), next_worker=next_worker)
    facts = Facts(session)
    facts.transaction(lambda: False).replace(state_path(name), state_to(state)).commit()


def test_a_job_under_an_old_name_goes_on_counting_its_workers(session: Session) -> None:
    control = ControlPlane(session)
    assert control.submit(SPEC).next_worker == 1
    end(session, "train", next_worker=5)
    control.remove("train")
    assert control.submit(SPEC).next_worker == 5
    assert control.job("train").next_worker == 5
    assert control.submit(replace(SPEC, name="other")).next_worker == 1


def test_a_name_that_is_removed_and_taken_by_many_at_once_never_counts_back(
    another: Callable[..., Session],
) -> None:
    sessions = [another() for _ in range(3)]

    def live(at: int) -> list[int]:
        control, starts = ControlPlane(sessions[at]), []
        for _ in range(10):
            try:
                first = control.submit(SPEC).next_worker
            except Conflict:
                continue
            starts.append(first)
            end(sessions[at], "train", next_worker=first + 1)
            control.remove("train")
        return starts

    with ThreadPoolExecutor(3) as pool:
        starts = [first for each in pool.map(live, range(3)) for first in each]
    assert sorted(starts) == list(range(1, len(starts) + 1))


def test_a_stop_without_a_checkpoint_is_not_taken_back_and_not_made_milder(
    session: Session,
) -> None:
    control = ControlPlane(session)
    control.submit(SPEC)
    control.set_intent("train", Intent.STOP)
    control.set_intent("train", Intent.STOP_NOW)
    control.set_intent("train", Intent.STOP)
    assert control.job("train").intent is Intent.STOP_NOW
    for intent in (Intent.RUN, Intent.PAUSE):
        with pytest.raises(Refused, match="is being stopped"):
            control.set_intent("train", intent)


def test_a_removed_queue_is_gone_however_often_it_is_removed(session: Session) -> None:
    control = ControlPlane(session)
    control.put_queue(QueueQuota("production", Resources(cpu=4.0)))
    assert list(control.queues()) == ["production"]
    control.remove_queue("production")
    control.remove_queue("production")
    assert control.queues() == {}
