"""Facts as bytes: one spelling of each value, for the nodes of the coordination plane.

The spelling is that of `holdfast.wire.documents`, and of `holdfast.wire.values` for a view. A job
is several nodes, so that what changes often is small:

- its wish: what its users decide (spec, intent, how many workers, a checkpoint asked for)
- its settings, also its users'
- its state, its view, its placements (pages of `PLACEMENTS_PER_NODE` by worker), and its commit
  records, each of them the leader's alone
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Final

import msgspec

from holdfast.control.decide.facts import (
    Attempt,
    Checkpoint,
    Failure,
    Halt,
    Job,
    Placement,
    Queue,
    Setting,
    Status,
    Unreadable,
    View,
    Wish,
)
from holdfast.wire import documents, values
from holdfast.wire.documents import FORMAT

# Placements in one node: a change of one worker writes some 15 kB, not those of ten thousand.
PLACEMENTS_PER_NODE: Final = 256


@dataclass(frozen=True, slots=True)
class State:
    """What the leader decides of a job, but for what has a node of its own."""

    status: Status
    next_worker: int = 1
    attempt: Attempt | None = None
    failures: tuple[Failure, ...] = ()
    finished_by: int | None = None
    finished_step: int | None = None
    attempts: int = 0
    attempts_missed: int = 0
    abandoned_s: float | None = None
    admitted_s: float | None = None
    waited_s: float = 0.0
    halted: Halt | None = None
    unreadable: tuple[Unreadable, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """A decision that was carried out: when, in which term, what, and why."""

    at_s: float
    term: int
    what: str
    reason: str


def wish_of(job: Job, submission: str) -> Wish:
    names = (field.name for field in fields(Wish) if field.name != "submission")
    return Wish(submission=submission, **{name: getattr(job, name) for name in names})


def state_of(job: Job) -> State:
    return State(**{field.name: getattr(job, field.name) for field in fields(State)})


def job_of(
    wish: Wish,
    state: State,
    *,
    view: View | None,
    placements: Iterable[Placement],
    checkpoints: Iterable[Checkpoint],
    settings: tuple[Setting, ...],
) -> Job:
    """The job that these parts make."""
    return Job(
        spec=wish.spec,
        submitted_s=wish.submitted_s,
        intent=wish.intent,
        workers_wanted=wish.workers_wanted,
        checkpoint_asked=wish.checkpoint_asked,
        recovery=wish.recovery,
        revision=wish.revision,
        before=wish.before,
        before_revision=wish.before_revision,
        updated_s=wish.updated_s,
        placements=tuple(sorted(placements, key=lambda placement: placement.worker)),
        view=view,
        checkpoints=tuple(sorted(checkpoints, key=lambda checkpoint: checkpoint.step)),
        settings=settings,
        **{field.name: getattr(state, field.name) for field in fields(State)},
    )


# --- pages: what is many, and has short lines -----------------------------------------------
#
# A row has the values in the order of its class; what a newer version has added at its end is
# passed over, and what an older one has not written has its default.


class _Setting(msgspec.Struct, array_like=True):
    name: str
    value: str
    at_step: int


class _Placement(msgspec.Struct, array_like=True):
    worker: int
    node: str
    draining: bool
    since_s: float
    revision: int = 0


class _Entry(msgspec.Struct, array_like=True):
    at_s: float
    term: int
    what: str
    reason: str


class _Asked(msgspec.Struct, array_like=True):
    at_s: float
    reason: str


class _Settings(msgspec.Struct):
    settings: list[_Setting]


class _Placements(msgspec.Struct):
    placements: list[_Placement]


class _Entries(msgspec.Struct):
    entries: list[_Entry]


class _AskedPage(msgspec.Struct):
    asked: list[_Asked]


class _Names(msgspec.Struct):
    names: list[str]


def _row(value: Setting | Placement | Entry) -> list[Any]:
    return [getattr(value, field.name) for field in fields(value)]


# --- to plain values and bytes --------------------------------------------------------------


def wish_to(wish: Wish) -> Any:
    return documents.document(wish)


def settings_to(settings: Iterable[Setting]) -> Any:
    return {"format": FORMAT, "settings": [_row(setting) for setting in settings]}


def queue_to(queue: Queue) -> Any:
    return documents.document(queue)


def names_to(names: Iterable[str]) -> Any:
    return {"format": FORMAT, "names": sorted(names)}


def asked_to(entries: Iterable[Entry]) -> Any:
    return {"format": FORMAT, "asked": [[entry.at_s, entry.reason] for entry in entries]}


def state_to(state: State) -> bytes:
    return documents.to_bytes(state)


def checkpoint_to(checkpoint: Checkpoint) -> bytes:
    return documents.to_bytes(checkpoint)


def view_to(view: View) -> bytes:
    return values.view_bytes(view)


def placements_to(placements: Iterable[Placement]) -> bytes:
    rows = [_row(placement) for placement in placements]
    return documents.encoded({"format": FORMAT, "placements": rows})


def entries_to(entries: Iterable[Entry]) -> bytes:
    return documents.encoded({"format": FORMAT, "entries": [_row(entry) for entry in entries]})


def pages_of(placements: Iterable[Placement]) -> dict[int, tuple[Placement, ...]]:
    """The placements by the page that holds them."""
    found: dict[int, list[Placement]] = {}
    for placement in placements:
        found.setdefault(placement.worker // PLACEMENTS_PER_NODE, []).append(placement)
    return {page: tuple(held) for page, held in found.items()}


# --- and back -------------------------------------------------------------------------------


def wish_from(path: str, plain: Any) -> Wish:
    return documents.from_document(path, Wish, plain)


def settings_from(path: str, plain: Any) -> tuple[Setting, ...]:
    rows = documents.from_document(path, _Settings, plain).settings
    return tuple(Setting(row.name, row.value, row.at_step) for row in rows)


def queue_from(path: str, plain: Any) -> Queue:
    return documents.from_document(path, Queue, plain)


def names_from(path: str, plain: Any) -> frozenset[str]:
    return frozenset(documents.from_document(path, _Names, plain).names)


def asked_from(path: str, plain: Any) -> tuple[Entry, ...]:
    rows = documents.from_document(path, _AskedPage, plain).asked
    return tuple(Entry(row.at_s, 0, "Asked", row.reason) for row in rows)


def state_from(path: str, data: bytes) -> State:
    return documents.from_bytes(path, State, data)


def checkpoint_from(path: str, data: bytes) -> Checkpoint:
    return documents.from_bytes(path, Checkpoint, data)


def view_from(path: str, data: bytes) -> View:
    try:
        return values.view_from(data)
    except documents.NOT_READ as error:
        raise documents.corrupt(path, str(error)) from error


def placements_from(path: str, data: bytes) -> tuple[Placement, ...]:
    rows = documents.from_bytes(path, _Placements, data).placements
    return tuple(Placement(*msgspec.structs.astuple(row)) for row in rows)


def entries_from(path: str, data: bytes) -> tuple[Entry, ...]:
    rows = documents.from_bytes(path, _Entries, data).entries
    return tuple(Entry(row.at_s, row.term, row.what, row.reason) for row in rows)
