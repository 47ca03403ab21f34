"""Do all members still hold the same state? Pure.

Same step, same settings, same state: that is the promise. A bit that flipped in somebody's memory,
or code that is not deterministic, breaks it silently. So members compare digests: now and then
(a large state is gone through in turns, `HASH_BYTES` at a time), in the step behind each
checkpoint, at the end of a loop, and before something is published.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.train.states.state import StateEntry, TrainingState, one_spelling
from holdfast.wire.errors import TerminalError

# All members compare a digest of their state every so many steps, and of so many bytes at a time:
# a larger state is gone through in turns.
HASH_STEPS: Final = 50
HASH_BYTES: Final = 64 * 1024 * 1024

DIGEST_BYTES: Final = 16
NOTES: Final = "the notes"
# What a hook makes of the time, or of its host, shows when it has run for the first time; later
# there may be nobody left to compare with.
_EARLY_STEPS: Final = (1, 2, 4)


class Diverged(TerminalError):
    """Members of a job hold different states, and nobody knows which is right."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """`wrong` differ from the majority, whose lowest member is `source`; None: there is none."""

    source: int | None
    wrong: tuple[int, ...]


def diverged(when: str, what: str) -> Diverged:
    """The error for members that differ: `what` names who differs in what."""
    return Diverged(
        f"{when} the workers hold different states: {what}",
        why=_likely(what),
        fix="let the script depend on nothing but the batch, tracked objects, run.settings and "
        "run.completed (docs/training.md, `What is promised`), then start it again",
    )


def _likely(what: str) -> str:
    """What it usually is, by where it shows first."""
    first = what.partition(" differs in ")[2].partition(",")[0].partition(";")[0]
    if first == NOTES:
        return (
            "numbers beside the weights differ: something was logged, or the loop was stopped, by "
            "one worker and not by another"
        )
    if first.endswith((".running_mean", ".running_var", ".num_batches_tracked")):
        return "a batch norm saw other data on each worker, in a hook or behind the loop"
    return (
        "the likely reason is something that each worker has for itself: a counter or a cache in a "
        "module or a global, a generator of the script's own, the time, the order of a set. One "
        "worker that differs alone may have bad memory"
    )


def due(step: int) -> bool:
    return step in _EARLY_STEPS or step % HASH_STEPS == 0


def turn_of(state: TrainingState, limit_bytes: int = HASH_BYTES) -> tuple[StateEntry, ...]:
    """The entries whose turn it is at this state's step."""
    turns: list[list[StateEntry]] = [[]]
    size = 0
    for entry in state.entries:
        if turns[-1] and size + entry.data.nbytes > limit_bytes:
            turns.append([])
            size = 0
        turns[-1].append(entry)
        size += entry.data.nbytes
    return tuple(turns[state.step // HASH_STEPS % len(turns)])


def digests(state: TrainingState, entries: Sequence[StateEntry]) -> list[tuple[str, bytes]]:
    """What is compared, by name: the notes, and each of these entries."""
    found = [(NOTES, _digest(one_spelling([state.step, state.notes])))]
    for entry in entries:
        what = one_spelling([entry.name, entry.dtype, list(entry.shape)])
        found.append((entry.name, _digest(what, entry.data)))
    return found


def together(found: Sequence[tuple[str, bytes]]) -> bytes:
    """One digest of all of them."""
    return _digest(*(digest for _, digest in found))


def judge(reported: Mapping[int, bytes]) -> Disagreement:
    """Who is wrong, by the digest that each worker said."""
    votes: dict[bytes, list[int]] = {}
    for worker in sorted(reported):
        votes.setdefault(reported[worker], []).append(worker)
    most = max(votes.values(), key=len)
    if 2 * len(most) <= len(reported):
        return Disagreement(None, tuple(sorted(reported)))
    return Disagreement(most[0], tuple(worker for worker in sorted(reported) if worker not in most))


def _digest(*data: bytes | memoryview) -> bytes:
    found = hashlib.sha256()
    for each in data:
        found.update(each)
    return found.digest()[:DIGEST_BYTES]
