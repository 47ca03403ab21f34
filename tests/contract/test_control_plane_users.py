"""Users' verbs in the coordination plane: kept, put in order, and refused with a reason."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from holdfast.control.decide.facts import Intent, Phase, QueueQuota, Setting
from holdfast.control.decide.spec import JobSpec, Resources
from holdfast.control.store.plane import SETTINGS_MAX, ControlPlane
from holdfast.coordination import Session
from holdfast.wire.errors import Conflict, Full, Missing, Refused, Usage
from holdfast.wire.limits import ASKED_CHARACTERS_MAX, ASKED_KEPT

Sessions = Callable[..., Session]

SPEC = JobSpec("train", ("python", "train.py"), lanes=4, workers_min=1, workers_max=4)


@pytest.fixture
def control(session: Session) -> ControlPlane:
    return ControlPlane(session)


def test_a_submitted_job_is_queued_and_its_name_is_taken(control: ControlPlane) -> None:
    job = control.submit(SPEC)
    assert control.job("train") == job
    assert job.status.phase is Phase.QUEUED
    assert control.jobs() == {"train": job}
    (asked,) = control.history("train")
    assert (asked.what, asked.reason) == ("Asked", "its user asked: run on 1 to 4 workers")
    with pytest.raises(Conflict, match="a job train already"):
        control.submit(replace(SPEC, lanes=8))
    assert control.job("train").spec == SPEC


@pytest.mark.parametrize("name", ["", "a/b", "..", "-x", "x" * 300, "a b"])
def test_a_name_that_cannot_be_a_path_is_refused(control: ControlPlane, name: str) -> None:
    with pytest.raises(Usage):
        control.submit(replace(SPEC, name=name))
    with pytest.raises(Usage):
        control.drain_node(name)
    assert control.jobs() == {}


def test_what_users_ask_for_is_kept(control: ControlPlane) -> None:
    control.submit(SPEC)
    control.set_intent("train", Intent.PAUSE)
    control.scale("train", 3)
    control.ask_checkpoint("train")
    control.change_setting("train", "lr", "0.1", 10)
    control.change_setting("train", "lr", "0.1", 10)
    control.change_setting("train", "lr", "0.2", 20)
    job = control.job("train")
    assert (job.intent, job.workers_wanted, job.checkpoint_asked) == (Intent.PAUSE, 3, True)
    assert job.settings == (Setting("lr", "0.1", 10), Setting("lr", "0.2", 20))
    control.scale("train", None)
    control.set_intent("train", Intent.RUN)
    job = control.job("train")
    assert (job.intent, job.workers_wanted) == (Intent.RUN, None)


def test_what_users_ask_for_is_told_in_words_and_what_is_so_already_is_not_told_again(
    control: ControlPlane,
) -> None:
    control.submit(replace(SPEC, workers_min=2, workers_max=2))
    control.set_intent("train", Intent.PAUSE)
    control.set_intent("train", Intent.PAUSE)
    control.set_intent("train", Intent.RUN)
    control.scale("train", 2)
    control.scale("train", None)
    control.ask_checkpoint("train")
    control.ask_checkpoint("train")
    control.change_setting("train", "lr", "0.1", 120)
    control.change_setting("train", "lr", "0.1", 120)
    control.change_setting("train", "wd", "0")
    control.set_intent("train", Intent.STOP)
    with pytest.raises(Refused):
        control.set_intent("train", Intent.RUN)
    assert [entry.reason for entry in control.history("train")] == [
        f"its user asked: {what}"
        for what in (
            "run on 2 workers",
            "pause",
            "resume",
            "scale to 2",
            "scale to as many workers as its file allows",
            "checkpoint",
            "lr=0.1 for step 120",
            "wd=0 for the next step",
            "stop",
        )
    ]


def test_of_what_users_asked_for_the_newest_words_stay(control: ControlPlane) -> None:
    control.submit(SPEC)
    control.change_setting("train", "note", "x" * 5_000)
    for number in range(ASKED_KEPT - 1):
        control.change_setting("train", "lr", str(number), 7)
    told = [entry.reason for entry in control.history("train")]
    assert len(told) == ASKED_KEPT
    assert len(told[0]) == ASKED_CHARACTERS_MAX
    assert told[-1] == f"its user asked: lr={ASKED_KEPT - 2} for step 7"


def test_what_cannot_be_asked_for_is_refused(control: ControlPlane) -> None:
    control.submit(SPEC)
    for workers in (0, 5):
        with pytest.raises(Usage, match="1 to 4"):
            control.scale("train", workers)
    with pytest.raises(Usage):
        control.change_setting("train", "lr", "1", -1)
    with pytest.raises(Refused, match="only a job that has ended"):
        control.remove("train")
    for act in (
        lambda: control.job("other"),
        lambda: control.history("other"),
        lambda: control.remove("other"),
        lambda: control.scale("other", 1),
        lambda: control.change_setting("other", "lr", "1", 1),
    ):
        with pytest.raises(Missing):
            act()
    control.set_intent("train", Intent.STOP)
    with pytest.raises(Refused):
        control.set_intent("train", Intent.RUN)


def test_many_settings_end_in_a_clear_refusal(
    control: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SETTINGS_MAX > 3
    monkeypatch.setattr("holdfast.control.store.plane.SETTINGS_MAX", 3)
    control.submit(SPEC)
    for step in range(1, 4):
        control.change_setting("train", "lr", "1", step)
    with pytest.raises(Full):
        control.change_setting("train", "lr", "1", 4)


def test_queues_and_drained_machines_are_kept(control: ControlPlane) -> None:
    queue = QueueQuota("prod", Resources(4.0, 5, 1), Resources(8.0))
    control.put_queue(queue)
    control.put_queue(QueueQuota("lab", Resources()))
    control.put_queue(QueueQuota("lab", Resources(1.0)))
    assert control.queues() == {"prod": queue, "lab": QueueQuota("lab", Resources(1.0))}
    control.drain_node("a")
    control.drain_node("b")
    control.undrain_node("a")
    control.undrain_node("never")
    assert control.draining_nodes() == {"b"}


def test_users_at_once_do_not_undo_each_other(control: ControlPlane, another: Sessions) -> None:
    control.submit(SPEC)
    others = [ControlPlane(another(8)) for _ in range(3)]

    def ask(number: int) -> None:
        plane = others[number % 3]
        plane.change_setting("train", f"s{number}", "1", number + 1)
        plane.drain_node(f"n{number}")

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(ask, range(24)))
    assert {setting.name for setting in control.job("train").settings} == {
        f"s{number}" for number in range(24)
    }
    told = {entry.reason for entry in control.history("train")[1:]}
    assert told == {f"its user asked: s{n}=1 for step {n + 1}" for n in range(24)}
    assert control.draining_nodes() == {f"n{number}" for number in range(24)}
