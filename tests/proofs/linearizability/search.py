"""A second checker that knows nothing of zxids: it tries every order that real time allows.

After Wing and Gong, with the memory of visited states that Lowe and Porcupine add. It takes
exponential time in the number of concurrent operations, so it is for short histories.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.proofs.linearizability.history import ANY_VERSION, Operation, by_key

State = tuple[int, bytes]  # version and value; version -1: not yet made


def linearizable(history: Sequence[Operation]) -> bool:
    """Whether some order of each register's operations explains all answers."""
    return all(_register(operations) for operations in by_key(history).values())


def _register(operations: list[Operation]) -> bool:
    useful = [op for op in operations if not (op.kind == "read" and op.outcome == "unknown")]
    everything = (1 << len(useful)) - 1
    must = sum(1 << n for n, op in enumerate(useful) if op.outcome != "unknown")
    seen: set[tuple[int, State]] = set()
    stack: list[tuple[int, State]] = [(everything, (-1, b""))]
    while stack:
        left, state = stack.pop()
        if not left & must:
            return True
        if (left, state) in seen:
            continue
        seen.add((left, state))
        waiting = [n for n in range(len(useful)) if left >> n & 1]
        horizon = min(useful[n].returned for n in waiting)
        for n in waiting:
            if useful[n].invoked > horizon:
                continue
            following = _apply(useful[n], state)
            if following is not None:
                stack.append((left & ~(1 << n), following))
    return False


def _apply(op: Operation, state: State) -> State | None:
    """The state after an operation, or None if its answer cannot have come from this state."""
    version, value = state
    if op.kind == "read":
        return state if (op.version, op.value) == (version, value) else None
    matches = op.expected in (ANY_VERSION, version)
    if op.outcome == "refused":
        return None if matches else state
    if op.outcome == "unknown":
        return (version + 1, op.value) if matches else state
    return (op.version, op.value) if matches and op.version == version + 1 else None
