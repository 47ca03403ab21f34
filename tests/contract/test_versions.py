"""What is written about a job is written upon what was read, each node for itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.control.decide.commands import (
    BeginCheckpoint,
    CommitCheckpoint,
    DropCheckpoint,
    Record,
    WriteView,
)
from holdfast.control.decide.facts import Attempt, Intent, Phase, View
from holdfast.control.store import layout
from holdfast.control.store.audit import AuditLog
from holdfast.control.store.plane import ControlPlane
from holdfast.coordination import Facts, Session
from holdfast.coordination.transaction import Transaction
from holdfast.wire.errors import Conflict, Refused
from tests.contract.interleaving import before_first
from tests.contract.leading import SPEC, Leading, place, status

Sessions = Callable[..., Session]


@pytest.fixture
def control(session: Session) -> ControlPlane:
    return ControlPlane(session)


@pytest.fixture
def leading(session: Session, control: ControlPlane) -> Leading:
    """It leads a job with a view, two checkpoints and a history."""
    control.submit(SPEC)
    found = Leading(session)
    found.run_to_a_view()
    for number, step in ((1, 10), (2, 20)):
        attempt = Attempt(number, step, 1, 6.0)
        found.write(BeginCheckpoint("train", attempt))
        found.write(CommitCheckpoint("train", attempt, {1: (), 2: ()}), manifest=f"m/{step}")
    found.ledger.refresh()
    return found


def touched(session: Session, path: str) -> bytes:
    """Write what is there once more: the same bytes in another version."""
    facts = Facts(session)
    fact = facts.read(path, fresh=True)
    assert fact is not None
    facts.transaction(lambda: True).replace(path, fact.data, fact.version).commit()
    return fact.data


@pytest.mark.parametrize(
    ("path", "record"),
    [
        (layout.state_path("train"), status(Phase.GROWING)),
        # The state is not among what these write, and yet is what they are decided upon.
        (layout.state_path("train"), WriteView("train", View(2, {1: (0, 1), 2: (2, 3)}, 0))),
        (layout.view_path("train"), WriteView("train", View(2, {1: (0, 1), 2: (2, 3)}, 0))),
        (layout.page_path("train", 0), place(3, "b")),
        (layout.checkpoint_path("train", 10), DropCheckpoint("train", 10)),
        (f"{layout.history_path('train')}/0", status(Phase.GROWING)),
    ],
    ids=["state", "state unchanged", "view", "placements", "checkpoint", "history"],
)
def test_a_record_overwrites_what_another_hand_wrote_since_it_was_read(
    leading: Leading, another: Sessions, path: str, record: Record
) -> None:
    other = another()
    facts = Facts(other)
    path = _there(facts, path)
    data = touched(other, path)
    with pytest.raises(Conflict):
        leading.write(record)
    found = facts.read(path, fresh=True)
    assert found is not None
    assert found.data == data
    # It is read again, and decided again.
    leading.ledger.refresh()
    leading.write(record)


def _there(facts: Facts, path: str) -> str:
    """The path, or the last of its neighbours: pages have numbers."""
    if facts.read(path, fresh=True) is not None:
        return path
    above = path.rpartition("/")[0]
    return f"{above}/{facts.names(above)[-1]}"


def test_of_two_users_who_change_one_node_at_once_one_is_forgotten(
    control: ControlPlane, another: Sessions
) -> None:
    control.submit(SPEC)
    other = ControlPlane(another())
    with before_first(AuditLog, "note_in", lambda: other.change_setting("train", "theirs", "1")):
        control.change_setting("train", "mine", "1")
    names = {setting.name for setting in control.job("train").settings}
    assert names == {"mine", "theirs"}


def test_of_two_users_who_ask_different_things_at_once_the_words_of_one_are_lost(
    control: ControlPlane, another: Sessions
) -> None:
    control.submit(SPEC)
    other = ControlPlane(another(), "ben")
    with before_first(Transaction, "commit", lambda: other.scale("train", 2)):
        control.change_setting("train", "lr", "1")
    told = " ".join(entry.reason for entry in control.history("train"))
    assert "ben asked: scale to 2" in told
    assert "asked: lr=1" in told


def test_a_new_job_is_removed_in_place_of_the_ended_one_of_its_name(
    control: ControlPlane, session: Session, another: Sessions
) -> None:
    control.submit(SPEC)
    Leading(session).write(status(Phase.STOPPED))
    other = ControlPlane(another())

    def again() -> None:
        other.remove("train")
        other.submit(SPEC)

    with before_first(control, "_remove", again), pytest.raises(Refused, match="queued"):
        control.remove("train")
    assert other.job("train").status.phase is Phase.QUEUED
    assert other.job("train").intent is Intent.RUN
