"""A leader with its ledger, for the tests of its records."""

from __future__ import annotations

import threading

from holdfast.control.decide.commands import Decision, PlaceWorker, Record, SetStatus, WriteView
from holdfast.control.decide.facts import Phase, Placement, RecordedStatus, View
from holdfast.control.decide.spec import JobSpec
from holdfast.control.store import layout
from holdfast.control.store.ledger import Ledger
from holdfast.control.store.plane import ControlPlane
from holdfast.coordination import Election, Leadership, Session
from holdfast.wire.history import HistoryEntry

SPEC = JobSpec("train", ("python", "train.py"), lanes=4, workers_min=1, workers_max=4)


def decided(control: ControlPlane, job: str = "train") -> list[HistoryEntry]:
    """The history without what users asked for."""
    return [entry for entry in control.history(job) if entry.term]


class Leading:
    """A leader with its ledger, and short words for records."""

    def __init__(self, session: Session) -> None:
        self.leadership: Leadership = Election(session, layout.LEADER, "me").campaign(30)
        self.woken = threading.Event()
        self.ledger = Ledger(session, self.leadership, self.woken.set)
        self.ledger.read()

    def write(self, *records: Record, manifest: str = "") -> None:
        decisions = [Decision(record, f"because of {type(record).__name__}") for record in records]
        assert self.ledger.carry_out(records[0].job, decisions, manifest) == len(records)

    def run_to_a_view(self) -> View:
        view = View(1, {1: (0, 1), 2: (2, 3)}, 0)
        self.write(place(1), place(2))
        self.write(WriteView("train", view))
        return view


def place(worker: int, node: str = "a") -> PlaceWorker:
    return PlaceWorker("train", Placement(worker, node, since_s=float(worker)))


def status(phase: Phase) -> SetStatus:
    return SetStatus("train", RecordedStatus(phase, f"it is {phase.value}", 5.0))
