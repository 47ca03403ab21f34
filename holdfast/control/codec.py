"""Facts as bytes: one spelling of each value, for the nodes of the coordination plane.

The spelling is that of `holdfast.wire.documents`. A job is several nodes, so that what changes
often is small:

- its wish: what its users decide (spec, intent, how many workers, a checkpoint asked for)
- its settings, also its users'
- its state, its view, its placements (pages of `PLACEMENTS_PER_NODE` by worker), and its commit
  records, each of them the leader's alone
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from holdfast.control.facts import (
    Attempt,
    Checkpoint,
    Failure,
    Halt,
    Intent,
    Job,
    Placement,
    Queue,
    Recovery,
    Setting,
    Status,
    Unreadable,
    View,
)
from holdfast.control.spec import JobSpec
from holdfast.wire import documents
from holdfast.wire.documents import FORMAT
from holdfast.wire.limits import PLACEMENTS_PER_NODE


@dataclass(frozen=True, slots=True)
class Wish:
    """What users decide of a job. `submission` is another for each job that ever had the name.
    `before`: the spec that an update replaces, and its number."""

    spec: JobSpec
    submitted_s: float
    submission: str
    intent: Intent = Intent.RUN
    workers_wanted: int | None = None
    checkpoint_asked: bool = False
    revision: int = 0
    before: JobSpec | None = None
    before_revision: int = 0
    updated_s: float = 0.0
    recovery: Recovery = Recovery.NONE


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
    return Wish(
        job.spec,
        job.submitted_s,
        submission,
        job.intent,
        job.workers_wanted,
        job.checkpoint_asked,
        job.revision,
        job.before,
        job.before_revision,
        job.updated_s,
        job.recovery,
    )


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


# --- to plain values and bytes --------------------------------------------------------------


def wish_to(wish: Wish) -> Any:
    return documents.document(wish)


def settings_to(settings: Iterable[Setting]) -> Any:
    return {"format": FORMAT, "settings": [[s.name, s.value, s.at_step] for s in settings]}


def queue_to(queue: Queue) -> Any:
    return documents.document(queue)


def names_to(names: Iterable[str]) -> Any:
    return {"format": FORMAT, "names": sorted(names)}


def asked_to(entries: Iterable[Entry]) -> Any:
    return {"format": FORMAT, "asked": [[entry.at_s, entry.reason] for entry in entries]}


def state_to(state: State) -> bytes:
    return documents.encoded(documents.document(state))


def checkpoint_to(checkpoint: Checkpoint) -> bytes:
    return documents.encoded(documents.document(checkpoint))


def view_to(view: View) -> bytes:
    """Lanes as runs, `[first, end, first, end, …]`: a worker's lanes are few pieces."""
    lanes = {str(worker): _runs(lanes) for worker, lanes in view.lanes.items()}
    return documents.encoded(
        {
            "format": FORMAT,
            "number": view.number,
            "lanes": lanes,
            "restore_step": view.restore_step,
            "manifest": view.manifest,
            "settings": view.settings,
            "addresses": {str(worker): address for worker, address in view.addresses.items()},
        }
    )


def placements_to(placements: Iterable[Placement]) -> bytes:
    rows = [[p.worker, p.node, p.draining, p.since_s, p.revision] for p in placements]
    return documents.encoded({"format": FORMAT, "placements": rows})


def entries_to(entries: Iterable[Entry]) -> bytes:
    rows = [[entry.at_s, entry.term, entry.what, entry.reason] for entry in entries]
    return documents.encoded({"format": FORMAT, "entries": rows})


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
    rows = documents.opened(path, plain, ("settings",))["settings"]
    return tuple(Setting(*row) for row in documents.rows(path, rows, (str, str, int)))


def queue_from(path: str, plain: Any) -> Queue:
    return documents.from_document(path, Queue, plain)


def names_from(path: str, plain: Any) -> frozenset[str]:
    names = documents.opened(path, plain, ("names",))["names"]
    return frozenset(documents.read(path, tuple[str, ...], names))


def asked_from(path: str, plain: Any) -> tuple[Entry, ...]:
    rows = documents.opened(path, plain, ("asked",))["asked"]
    return tuple(
        Entry(at_s, 0, "Asked", said) for at_s, said in documents.rows(path, rows, (float, str))
    )


def state_from(path: str, data: bytes) -> State:
    return documents.from_document(path, State, documents.parsed(path, data))


def checkpoint_from(path: str, data: bytes) -> Checkpoint:
    return documents.from_document(path, Checkpoint, documents.parsed(path, data))


def view_from(path: str, data: bytes) -> View:
    keys = ("number", "lanes", "restore_step", "manifest", "addresses", "settings")
    body = documents.opened(path, documents.parsed(path, data), keys)
    return View(
        documents.read(path, int, body["number"]),
        {worker: _lanes(path, runs) for worker, runs in _by_worker(path, body["lanes"])},
        documents.read(path, int | None, body["restore_step"]),
        documents.read(path, str, body["manifest"]),
        {
            worker: documents.read(path, str, at)
            for worker, at in _by_worker(path, body["addresses"])
        },
        documents.read(path, int, body["settings"]),
    )


def _by_worker(path: str, mapping: Any) -> Iterator[tuple[int, Any]]:
    if not isinstance(mapping, dict):
        raise documents.corrupt(path, f"{mapping!r:.50} is not a mapping")
    for worker, value in mapping.items():
        if not worker.isdecimal():
            raise documents.corrupt(path, f"{worker!r} is not a worker")
        yield int(worker), value


def placements_from(path: str, data: bytes) -> tuple[Placement, ...]:
    rows = documents.opened(path, documents.parsed(path, data), ("placements",))["placements"]
    read = documents.rows(path, rows, (int, str, bool, float))
    # An older version has not written the last one.
    revisions = [documents.read(path, int, row[4]) if len(row) > 4 else 0 for row in rows]
    return tuple(
        Placement(worker, node, draining, since_s, revision)
        for (worker, node, draining, since_s), revision in zip(read, revisions, strict=True)
    )


def entries_from(path: str, data: bytes) -> tuple[Entry, ...]:
    rows = documents.opened(path, documents.parsed(path, data), ("entries",))["entries"]
    return tuple(Entry(*row) for row in documents.rows(path, rows, (float, int, str, str)))


# --- runs of lanes ---------------------------------------------------------------------------


def _runs(lanes: Sequence[int]) -> list[int]:
    runs: list[int] = []
    for lane in lanes:
        if runs and runs[-1] == lane:
            runs[-1] = lane + 1
        else:
            runs += [lane, lane + 1]
    return runs


def _lanes(path: str, runs: Any) -> tuple[int, ...]:
    ends = documents.read(path, tuple[int, ...], runs)
    if len(ends) % 2 or any(first >= end for first, end in zip(ends[::2], ends[1::2], strict=True)):
        raise documents.corrupt(path, f"{str(runs)[:80]} are not runs of lanes")
    pairs = zip(ends[::2], ends[1::2], strict=True)
    return tuple(lane for first, end in pairs for lane in range(first, end))
