"""A setting that was given is not said to be in effect unless something has taken it."""

from __future__ import annotations

from holdfast.cli.jobs.phrases import given_settings
from holdfast.control.decide.facts import Setting
from holdfast.wire.reports import SETTING_METRIC, WorkerFacts, WorkerPhase
from tests.unit.control.test_lifecycle import job_with


def worker(number: int, step: int, **metrics: float) -> tuple[str, WorkerFacts]:
    told = {f"{SETTING_METRIC}{name}": value for name, value in metrics.items()}
    return "n1", WorkerFacts("train", number, WorkerPhase.RUNNING, step=step, metrics=told)


def test_a_setting_is_in_effect_only_if_a_worker_says_that_something_has_taken_it() -> None:
    job = job_with(
        settings=(Setting("lr", "0.1", 0), Setting("epochs", "9", 5), Setting("lane_batch", "8", 9))
    )
    before = given_settings(job, {1: worker(1, 3), 2: worker(2, 3)})
    assert [each.taken for each in before] == [None, None, None]
    assert [each.text for each in before] == [
        "lr=0.1 (for the next step)",
        "epochs=9 (for step 5)",
        "lane_batch=8 (for step 9)",
    ]
    working = {1: worker(1, 7, lr=1.0, epochs=0.0), 2: worker(2, 7, lr=0.0, epochs=0.0)}
    after = given_settings(job, working)
    assert [each.taken for each in after] == [True, False, None]
    assert after[0].text == "lr=0.1 (in effect)"
    assert "was given, but nothing takes it" in after[1].text


def test_of_two_settings_of_one_name_only_the_later_one_can_be_in_effect() -> None:
    job = job_with(settings=(Setting("lr", "0.1", 0), Setting("lr", "0.2", 0)))
    assert [each.taken for each in given_settings(job, {1: worker(1, 7, lr=1.0)})] == [None, True]
