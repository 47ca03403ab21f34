"""What happened in a run, for people who look for the cause of a violation."""

from __future__ import annotations

import json
import time

from tests.proofs.control.events import Commit, Event, Fault, Status, Term, View


def story(events: list[Event], last: int) -> str:
    """The last events, for people."""
    lines = []
    for event in events[-5_000:]:
        match event:
            case Fault(at_s, kind, what):
                lines.append(f"{clock(at_s)} ** {kind}: {what}")
            case Term(at_s, term, leader):
                lines.append(f"{clock(at_s)} term {term} is {leader}'s")
            case View(at_s, job, number, lanes, restore_step):
                begins = "" if restore_step is None else f", from step {restore_step}"
                lines.append(f"{clock(at_s)} {job}: view {number} {json.dumps(lanes)}{begins}")
            case Commit(at_s, job, step, term):
                lines.append(f"{clock(at_s)} {job}: step {step} committed in term {term}")
            case Status(at_s, job, phase, reason):
                lines.append(f"{clock(at_s)} {job}: {phase}, {reason[-200:]}")
    return "\n".join(lines[-last:])


def clock(at_s: float) -> str:
    return f"{time.strftime('%H:%M:%S', time.gmtime(at_s))}.{int(at_s * 1000) % 1000:03d}"
