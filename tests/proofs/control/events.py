"""What was seen of a cluster while it was disturbed, as values.

A history is a list of these in the order of `at_s`, but for `Step` and `Adopted`, which come from
the workers' own logs and are in order for each worker. It is kept as JSON lines, so that a failed
run can be read and checked again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Fault:
    """What the harness did: a kill, a pause, a restart."""

    at_s: float
    kind: str
    what: str


@dataclass(frozen=True, slots=True)
class Term:
    """Who took this term."""

    at_s: float
    term: int
    leader: str


@dataclass(frozen=True, slots=True)
class View:
    """A view as its node had it in this version."""

    at_s: float
    job: str
    number: int
    lanes: Mapping[str, list[int]]
    restore_step: int | None
    version: int
    changed: int = 0  # the plane's number of the write


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit record; `written` is the plane's number of its write."""

    at_s: float
    job: str
    step: int
    term: int
    manifest: str
    written: int


@dataclass(frozen=True, slots=True)
class Decision:
    """An entry of a job's history: `page` and `index` say where it stands."""

    at_s: float
    job: str
    page: int
    index: int
    term: int
    what: str
    reason: str


@dataclass(frozen=True, slots=True)
class Status:
    """A job's phase and its counters."""

    at_s: float
    job: str
    phase: str
    reason: str
    next_worker: int
    attempts: int


@dataclass(frozen=True, slots=True)
class Placed:
    """All placements of all jobs at one moment: `[job, worker, node]`."""

    at_s: float
    placements: list[list[Any]]


@dataclass(frozen=True, slots=True)
class Freed:
    """A placement has gone. `alive`: its process was still there when that was seen. `lost`: its
    node had been out of the plane since it was placed, so nobody could know."""

    at_s: float
    job: str
    worker: int
    node: str
    alive: bool
    lost: bool


@dataclass(frozen=True, slots=True)
class Process:
    """A worker's process was found (`alive`), or was not there any more."""

    at_s: float
    node: str
    job: str
    worker: int
    pid: int
    ticks: int
    alive: bool


@dataclass(frozen=True, slots=True)
class Obeyed:
    """An entry of an agent's journal: a term that it has seen, or a worker that it accepted."""

    at_s: float
    node: str
    kind: str
    term: int = 0
    job: str = ""
    worker: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """A worker's own word: in this view it holds this state."""

    job: str
    worker: int
    pid: int
    view: int
    step: int
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Adopted:
    """A worker's own word: this is the view that it has adopted."""

    job: str
    worker: int
    number: int
    lanes: Mapping[str, list[int]]
    restore_step: int | None


@dataclass(frozen=True, slots=True)
class Kept:
    """A commit record at the end, and what reading it back gave: "" if it is whole and right."""

    job: str
    step: int
    manifest: str
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a job that has ended gave, and what it should have given."""

    job: str
    phase: str
    last_step: int
    committed_step: int
    found: Mapping[str, Any] = field(default_factory=dict)
    expected: Mapping[str, Any] = field(default_factory=dict)


Event = (
    Fault
    | Term
    | View
    | Commit
    | Decision
    | Status
    | Placed
    | Freed
    | Process
    | Obeyed
    | Step
    | Adopted
    | Kept
    | Answer
)
_KINDS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (
        *(Fault, Term, View, Commit, Decision, Status, Placed),
        *(Freed, Process, Obeyed, Step, Adopted, Kept, Answer),
    )
}


def to_line(event: Event) -> str:
    return json.dumps({"event": type(event).__name__, **dataclasses.asdict(event)})


def from_line(line: str) -> Event:
    fields = json.loads(line)
    return _KINDS[fields.pop("event")](**fields)


def write(path: Path, events: Iterable[Event]) -> None:
    path.write_text("".join(f"{to_line(event)}\n" for event in events))


def read(path: Path) -> list[Event]:
    return [from_line(line) for line in path.read_text().splitlines()]
