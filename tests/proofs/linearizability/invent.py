"""Random short histories: of a true register, or of one that breaks a promise now and then."""

from __future__ import annotations

import random

from tests.proofs.linearizability.history import ANY_VERSION, NEVER, Operation

FAULTS = ("none", "stale", "lost", "blind", "late", "renumbered", "refuses")


def invent(
    source: random.Random, fault: str, clients: int = 3, operations: int = 12
) -> list[Operation]:
    """A history of one register. Each fault strikes a third of the operations that it can."""
    history = [
        Operation(-1, "k", "write", b"v0", ANY_VERSION, 0.0, 1.0, "ok", 1, 1, 0),
    ]
    zxid = 1
    states = [(1, 0, b"v0")]
    free_at = [2.0] * clients
    moments = sorted(2.0 + source.random() * 30 for _ in range(operations))
    for number, moment in enumerate(moments, start=1):
        idle = [n for n, free in enumerate(free_at) if free < moment]
        if not idle:
            continue
        client = source.choice(idle)
        invoked = source.uniform(free_at[client], moment)
        returned = moment + source.random() * 8
        free_at[client] = returned + 0.001
        strikes = source.random() < 0.34
        mzxid, version, value = states[-1]
        if source.random() < 0.5:
            position = zxid
            if fault == "stale" and strikes:
                mzxid, version, value = source.choice(states)
                position = source.choice([zxid, mzxid])
            history.append(
                Operation(
                    client, "k", "read", value, ANY_VERSION, invoked, returned, "ok",
                    position, mzxid, version,
                )
            )  # fmt: skip
            continue
        expected = source.choice([ANY_VERSION, version, version, max(0, version - 1)])
        applies = expected in (ANY_VERSION, version) or (fault == "blind" and strikes)
        if fault == "refuses" and strikes:
            applies = False
            expected = version
        unknown = source.random() < 0.2
        happens = not unknown or source.random() < 0.5
        written = f"v{number}".encode()
        op = Operation(client, "k", "write", written, expected, invoked, returned, "ok")
        if happens:
            zxid += 1
            op = op._replace(position=zxid)
            if not applies:
                op = op._replace(outcome="refused")
            else:
                op = op._replace(mzxid=zxid, version=version + 1)
                if not (fault == "lost" and strikes and not unknown):
                    states.append((zxid, version + 1, written))
        if unknown:
            op = op._replace(outcome="unknown", returned=NEVER, position=0, mzxid=0, version=0)
        history.append(op)
    return _disturb(source, fault, history)


def _disturb(source: random.Random, fault: str, history: list[Operation]) -> list[Operation]:
    """Faults of the record rather than of the register: moved in time, or with another number."""
    if fault not in ("late", "renumbered"):
        return history
    disturbed = history[:1]
    for op in history[1:]:
        changed = op
        if source.random() < 0.34 and op.outcome != "unknown":
            if fault == "late":
                shift = source.uniform(-8, 8)
                changed = op._replace(
                    invoked=max(1.1, op.invoked + shift), returned=max(1.2, op.returned + shift)
                )
            else:
                changed = op._replace(position=max(1, op.position + source.choice([-2, -1, 1, 2])))
        disturbed.append(changed)
    return disturbed
