"""Records and users' acts whose replies are lost: done once, and told once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.control.decide.commands import DrainWorker, UnplaceWorker
from holdfast.control.decide.facts import Exit, ExitKind, Phase
from holdfast.control.store.plane import ControlPlane
from holdfast.coordination import Session
from holdfast.coordination.embedded import protocol
from holdfast.wire.errors import Conflict
from tests.contract.cutting import CuttingProxy
from tests.contract.leading import SPEC, Leading, decided, place, status

SEED = 20_303


@pytest.fixture
def control(session: Session) -> ControlPlane:
    return ControlPlane(session)


@pytest.fixture
def leading(session: Session) -> Leading:
    return Leading(session)


def test_a_submission_and_a_removal_whose_replies_are_lost_are_done_once(
    proxy: CuttingProxy, through: Session, control: ControlPlane, leading: Leading
) -> None:
    users = ControlPlane(through)
    users.submit(replace(SPEC, name="other"))
    proxy.cut_the_next(protocol.MULTI)
    users.submit(SPEC)
    assert proxy.cuts == 1
    proxy.cut_the_next(protocol.MULTI)
    with pytest.raises(Conflict):
        users.submit(SPEC)
    leading.ledger.read()
    leading.write(status(Phase.STOPPED))
    proxy.cut_the_next(protocol.MULTI)
    users.remove("train")
    assert set(control.jobs()) == {"other"}


def test_what_users_ask_through_a_line_that_loses_replies_is_done_and_told_once(
    proxy: CuttingProxy, through: Session, control: ControlPlane
) -> None:
    print(f"seed {SEED}")
    control.submit(SPEC)
    users = ControlPlane(through, who="ada")
    proxy.cut_at_random(SEED, 0.5)
    for step in range(1, 11):
        users.change_setting("train", "lr", str(step), step)
        users.scale("train", 1 + step % 4)
    proxy.cut_nothing()
    assert proxy.cuts > 3
    assert [setting.at_step for setting in control.job("train").settings] == list(range(1, 11))
    told = [entry.reason for entry in control.history("train")][1:]
    assert told == [
        said
        for step in range(1, 11)
        for said in (f"ada asked: lr={step} for step {step}", f"ada asked: scale to {1 + step % 4}")
    ]


def test_records_whose_replies_are_lost_are_written_once(
    proxy: CuttingProxy, through: Session, control: ControlPlane
) -> None:
    print(f"seed {SEED}")
    control.submit(SPEC)
    leading = Leading(through)
    proxy.cut_at_random(SEED, 0.5)
    for worker in range(1, 11):
        leading.write(place(worker))
        leading.write(DrainWorker("train", worker, "enough"))
        leading.write(UnplaceWorker("train", worker, Exit(ExitKind.LEFT)))
    proxy.cut_nothing()
    assert proxy.cuts > 3
    assert [entry.what for entry in decided(control)] == [
        "PlaceWorker",
        "DrainWorker",
        "UnplaceWorker",
    ] * 10
    assert control.job("train") == leading.ledger.desired.jobs["train"]
    assert control.job("train").next_worker == 11
