"""The real decisions behind one door: plan the room, then reconcile."""

from __future__ import annotations

from holdfast.control.commands import Decision
from holdfast.control.facts import Desired, Observed
from holdfast.control.invariants import check_decisions
from holdfast.control.reconcile import node_rooms, reconcile
from holdfast.control.schedule import plan


def decide(
    desired: Desired, observed: Observed, now_s: float, *, own_checks: bool
) -> list[Decision]:
    """What a leader that sees this does next. `own_checks`: let the control plane judge itself."""
    rooms = node_rooms(desired, observed)
    allotted = plan(list(desired.jobs.values()), rooms, desired.queues, now_s)
    decisions = reconcile(desired, observed, now_s, allotted)
    if own_checks:
        check_decisions(desired, observed, decisions)
    return decisions
