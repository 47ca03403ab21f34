"""Facts as bytes: one spelling of each value, for the nodes of the coordination plane.

JSON with sorted keys and a format number. What is not understood (another format, a key that is
not known, a value of another kind) is `Corrupt`, and the message names the path: a coordinator
never guesses what a newer one meant. A key that is missing has its default, if it has one: so a
field can be added without a new format, and an older reader refuses what it does not know.

A job is several nodes, so that what changes often is small:

- its wish: what its users decide (spec, intent, how many workers, a checkpoint asked for)
- its settings, also its users'
- its state, its view, its placements (pages of `PLACEMENTS_PER_NODE` by worker), and its commit
  records, each of them the leader's alone
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from holdfast.control.facts import (
    Attempt,
    Checkpoint,
    Failure,
    Intent,
    Job,
    Placement,
    Queue,
    Setting,
    Status,
    View,
)
from holdfast.control.spec import JobSpec
from holdfast.wire.errors import Corrupt, Usage
from holdfast.wire.limits import PLACEMENTS_PER_NODE

FORMAT: Final = 1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wish:
    """What users decide of a job. `submission` is another for each job that ever had the name."""

    spec: JobSpec
    submitted_s: float
    submission: str
    intent: Intent = Intent.RUN
    workers_wanted: int | None = None
    checkpoint_asked: bool = False


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
        placements=tuple(sorted(placements, key=lambda placement: placement.worker)),
        view=view,
        checkpoints=tuple(sorted(checkpoints, key=lambda checkpoint: checkpoint.step)),
        settings=settings,
        **{field.name: getattr(state, field.name) for field in fields(State)},
    )


# --- to plain values and bytes --------------------------------------------------------------


def wish_to(wish: Wish) -> Any:
    return _document(wish)


def settings_to(settings: Iterable[Setting]) -> Any:
    return {"format": FORMAT, "settings": [[s.name, s.value, s.at_step] for s in settings]}


def queue_to(queue: Queue) -> Any:
    return _document(queue)


def names_to(names: Iterable[str]) -> Any:
    return {"format": FORMAT, "names": sorted(names)}


def asked_to(entries: Iterable[Entry]) -> Any:
    return {"format": FORMAT, "asked": [[entry.at_s, entry.reason] for entry in entries]}


def state_to(state: State) -> bytes:
    return _bytes(_document(state))


def checkpoint_to(checkpoint: Checkpoint) -> bytes:
    return _bytes(_document(checkpoint))


def view_to(view: View) -> bytes:
    """Lanes as runs, `[first, end, first, end, …]`: a worker's lanes are few pieces."""
    lanes = {str(worker): _runs(lanes) for worker, lanes in view.lanes.items()}
    return _bytes(
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
    rows = [[p.worker, p.node, p.draining, p.since_s] for p in placements]
    return _bytes({"format": FORMAT, "placements": rows})


def entries_to(entries: Iterable[Entry]) -> bytes:
    rows = [[entry.at_s, entry.term, entry.what, entry.reason] for entry in entries]
    return _bytes({"format": FORMAT, "entries": rows})


def pages_of(placements: Iterable[Placement]) -> dict[int, tuple[Placement, ...]]:
    """The placements by the page that holds them."""
    found: dict[int, list[Placement]] = {}
    for placement in placements:
        found.setdefault(placement.worker // PLACEMENTS_PER_NODE, []).append(placement)
    return {page: tuple(held) for page, held in found.items()}


# --- and back -------------------------------------------------------------------------------


def wish_from(path: str, plain: Any) -> Wish:
    return _from_document(path, Wish, plain)


def settings_from(path: str, plain: Any) -> tuple[Setting, ...]:
    rows = _open(path, plain, ("settings",))["settings"]
    return tuple(Setting(*row) for row in _rows(path, rows, (str, str, int)))


def queue_from(path: str, plain: Any) -> Queue:
    return _from_document(path, Queue, plain)


def names_from(path: str, plain: Any) -> frozenset[str]:
    names = _open(path, plain, ("names",))["names"]
    return frozenset(_read(path, tuple[str, ...], names))


def asked_from(path: str, plain: Any) -> tuple[Entry, ...]:
    rows = _open(path, plain, ("asked",))["asked"]
    return tuple(Entry(at_s, 0, "Asked", said) for at_s, said in _rows(path, rows, (float, str)))


def state_from(path: str, data: bytes) -> State:
    return _from_document(path, State, _parsed(path, data))


def checkpoint_from(path: str, data: bytes) -> Checkpoint:
    return _from_document(path, Checkpoint, _parsed(path, data))


def view_from(path: str, data: bytes) -> View:
    keys = ("number", "lanes", "restore_step", "manifest", "addresses", "settings")
    body = _open(path, _parsed(path, data), keys)
    return View(
        _read(path, int, body["number"]),
        {worker: _lanes(path, runs) for worker, runs in _by_worker(path, body["lanes"])},
        _read(path, int | None, body["restore_step"]),
        _read(path, str, body["manifest"]),
        {worker: _read(path, str, at) for worker, at in _by_worker(path, body["addresses"])},
        _read(path, int, body["settings"]),
    )


def _by_worker(path: str, mapping: Any) -> Iterator[tuple[int, Any]]:
    if not isinstance(mapping, dict):
        raise _corrupt(path, f"{mapping!r:.50} is not a mapping")
    for worker, value in mapping.items():
        if not worker.isdecimal():
            raise _corrupt(path, f"{worker!r} is not a worker")
        yield int(worker), value


def placements_from(path: str, data: bytes) -> tuple[Placement, ...]:
    rows = _open(path, _parsed(path, data), ("placements",))["placements"]
    return tuple(Placement(*row) for row in _rows(path, rows, (int, str, bool, float)))


def entries_from(path: str, data: bytes) -> tuple[Entry, ...]:
    rows = _open(path, _parsed(path, data), ("entries",))["entries"]
    return tuple(Entry(*row) for row in _rows(path, rows, (float, int, str, str)))


# --- the spelling ---------------------------------------------------------------------------


def _bytes(plain: Any) -> bytes:
    try:
        text = json.dumps(
            plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
        return text.encode()
    except ValueError as error:  # a number that is none, or half of a character
        raise Usage(
            "a fact cannot be written down", why=str(error), fix="check its numbers and its text"
        ) from error


def _parsed(path: str, data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise _corrupt(path, f"it is not JSON: {error}") from error


def _document(value: Any) -> dict[str, Any]:
    return {"format": FORMAT, **_plain(value)}


def _from_document(path: str, kind: type[T], plain: Any) -> T:
    value: T = _read(path, kind, _open(path, plain, None))
    return value


def _open(path: str, plain: Any, known: Sequence[str] | None) -> dict[str, Any]:
    """The body of a document of our format; with exactly the `known` keys, if given."""
    if not isinstance(plain, dict) or "format" not in plain:
        raise _corrupt(path, "it is not a document of ours")
    body = dict(plain)
    found = body.pop("format")
    if found != FORMAT:
        raise _corrupt(path, f"its format is {found!r}, and this version knows {FORMAT}")
    if known is not None and set(body) != set(known):
        odd = ", ".join(sorted(set(body) ^ set(known)))
        raise _corrupt(path, f"these keys are not known, or missing: {odd}")
    return body


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(held) for key, held in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(held) for held in value]
    return value


@cache
def _kinds(kind: type) -> dict[str, tuple[Any, bool]]:
    """For each field its type, and whether it may be left out."""
    hints = get_type_hints(kind)
    return {
        field.name: (
            hints[field.name],
            field.default is not MISSING or field.default_factory is not MISSING,
        )
        for field in fields(kind)
    }


def _read(path: str, kind: Any, plain: Any) -> Any:
    """`plain` as a value of `kind`; `Corrupt` if it is not one."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        (inner,) = [each for each in get_args(kind) if each is not type(None)]
        return None if plain is None else _read(path, inner, plain)
    if origin is tuple and isinstance(plain, list):
        return tuple(_read(path, get_args(kind)[0], each) for each in plain)
    if origin is not None and origin is not tuple and isinstance(plain, dict):
        return {key: _read(path, get_args(kind)[1], each) for key, each in plain.items()}
    if origin is None and issubclass(kind, Enum):
        try:
            return kind(plain)
        except ValueError as error:
            raise _corrupt(path, str(error)) from error
    if origin is None and is_dataclass(kind) and isinstance(plain, dict):
        return _read_fields(path, kind, plain)
    if kind is float and type(plain) in (int, float):
        return float(plain)
    if origin is None and type(plain) is kind:
        return plain
    raise _corrupt(path, f"{str(plain)[:80]!r} is not {getattr(kind, '__name__', kind)}")


def _read_fields(path: str, kind: Any, plain: dict[str, Any]) -> Any:
    kinds = _kinds(kind)
    unknown = sorted(set(plain) - set(kinds))
    missing = sorted(
        name for name, (_, optional) in kinds.items() if not optional and name not in plain
    )
    if unknown or missing:
        raise _corrupt(path, f"{kind.__name__}: unknown keys {unknown}, missing keys {missing}")
    return kind(**{name: _read(path, kinds[name][0], held) for name, held in plain.items()})


def _rows(path: str, rows: Any, kinds: Sequence[type]) -> list[list[Any]]:
    if not isinstance(rows, list):
        raise _corrupt(path, "its rows are not a list")
    read = []
    for row in rows:
        if not isinstance(row, list) or len(row) != len(kinds):
            raise _corrupt(path, f"a row does not have {len(kinds)} values: {str(row)[:80]}")
        read.append([_read(path, kind, held) for kind, held in zip(kinds, row, strict=True)])
    return read


def _runs(lanes: Sequence[int]) -> list[int]:
    runs: list[int] = []
    for lane in lanes:
        if runs and runs[-1] == lane:
            runs[-1] = lane + 1
        else:
            runs += [lane, lane + 1]
    return runs


def _lanes(path: str, runs: Any) -> tuple[int, ...]:
    ends = _read(path, tuple[int, ...], runs)
    if len(ends) % 2 or any(first >= end for first, end in zip(ends[::2], ends[1::2], strict=True)):
        raise _corrupt(path, f"{str(runs)[:80]} are not runs of lanes")
    pairs = zip(ends[::2], ends[1::2], strict=True)
    return tuple(lane for first, end in pairs for lane in range(first, end))


def _corrupt(path: str, why: str) -> Corrupt:
    return Corrupt(
        f"{path} does not hold what this version of holdfast can read",
        why=why,
        fix="use the version that wrote it, or restore the node from a backup",
    )
