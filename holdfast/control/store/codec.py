"""Facts as bytes: one spelling of each value, for the nodes of the coordination plane.

The spelling is that of `holdfast.wire.documents`, and of `holdfast.wire.values` for a view. A job
is several nodes, so that what changes often is small:

- its desired spec: what its users decide (spec, intent, how many workers, a checkpoint asked for)
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
    DesiredSpec,
    Failure,
    Halt,
    JobRecord,
    Placement,
    QueueQuota,
    RecordedStatus,
    Setting,
    TriggerState,
    Unreadable,
    View,
)
from holdfast.wire import documents, values
from holdfast.wire.documents import FORMAT

# Placements in one node: a change of one worker writes some 15 kB, not those of ten thousand.
PLACEMENTS_PER_NODE: Final = 256


@dataclass(frozen=True, slots=True)
class JobState:
    """What the leader decides of a job, but for what has a node of its own."""

    status: RecordedStatus
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
    trigger: TriggerState | None = None


def desired_spec_of(job: JobRecord, submission: str) -> DesiredSpec:
    names = (field.name for field in fields(DesiredSpec) if field.name != "submission")
    return DesiredSpec(submission=submission, **{name: getattr(job, name) for name in names})


def state_of(job: JobRecord) -> JobState:
    return JobState(**{field.name: getattr(job, field.name) for field in fields(JobState)})


def job_of(
    desired: DesiredSpec,
    state: JobState,
    *,
    view: View | None,
    placements: Iterable[Placement],
    checkpoints: Iterable[Checkpoint],
    settings: tuple[Setting, ...],
) -> JobRecord:
    """The job that these parts make."""
    return JobRecord(
        spec=desired.spec,
        submitted_s=desired.submitted_s,
        intent=desired.intent,
        workers_wanted=desired.workers_wanted,
        checkpoint_asked=desired.checkpoint_asked,
        recovery=desired.recovery,
        revision=desired.revision,
        before=desired.before,
        before_revision=desired.before_revision,
        updated_s=desired.updated_s,
        placements=tuple(sorted(placements, key=lambda placement: placement.worker)),
        view=view,
        checkpoints=tuple(sorted(checkpoints, key=lambda checkpoint: checkpoint.step)),
        settings=settings,
        **{field.name: getattr(state, field.name) for field in fields(JobState)},
    )


# --- pages: what is many, and has short lines -----------------------------------------------
#
# A row has the values in the order of its class; what a newer version has added at its end is
# passed over, and what an older one has not written has its default.


class _SettingRow(msgspec.Struct, array_like=True):
    name: str
    value: str
    at_step: int


class _PlacementRow(msgspec.Struct, array_like=True):
    worker: int
    node: str
    draining: bool
    since_s: float
    revision: int = 0


class _SettingsPage(msgspec.Struct):
    settings: list[_SettingRow]


class _PlacementsPage(msgspec.Struct):
    placements: list[_PlacementRow]


class _NamesPage(msgspec.Struct):
    names: list[str]


def _row(value: Setting | Placement) -> list[Any]:
    return [getattr(value, field.name) for field in fields(value)]


# --- to plain values and bytes --------------------------------------------------------------


def desired_spec_to(desired: DesiredSpec) -> Any:
    return documents.document(desired)


def settings_to(settings: Iterable[Setting]) -> Any:
    return {"format": FORMAT, "settings": [_row(setting) for setting in settings]}


def queue_to(queue: QueueQuota) -> Any:
    return documents.document(queue)


def names_to(names: Iterable[str]) -> Any:
    return {"format": FORMAT, "names": sorted(names)}


def state_to(state: JobState) -> bytes:
    return documents.to_bytes(state)


def checkpoint_to(checkpoint: Checkpoint) -> bytes:
    return documents.to_bytes(checkpoint)


def view_to(view: View) -> bytes:
    return values.view_bytes(view)


def placements_to(placements: Iterable[Placement]) -> bytes:
    rows = [_row(placement) for placement in placements]
    return documents.encoded({"format": FORMAT, "placements": rows})


def pages_of(placements: Iterable[Placement]) -> dict[int, tuple[Placement, ...]]:
    """The placements by the page that holds them."""
    found: dict[int, list[Placement]] = {}
    for placement in placements:
        found.setdefault(placement.worker // PLACEMENTS_PER_NODE, []).append(placement)
    return {page: tuple(held) for page, held in found.items()}


# --- and back -------------------------------------------------------------------------------


def desired_spec_from(path: str, plain: Any) -> DesiredSpec:
    return documents.from_document(path, DesiredSpec, plain)


def settings_from(path: str, plain: Any) -> tuple[Setting, ...]:
    rows = documents.from_document(path, _SettingsPage, plain).settings
    return tuple(Setting(row.name, row.value, row.at_step) for row in rows)


def queue_from(path: str, plain: Any) -> QueueQuota:
    return documents.from_document(path, QueueQuota, plain)


def names_from(path: str, plain: Any) -> frozenset[str]:
    return frozenset(documents.from_document(path, _NamesPage, plain).names)


def state_from(path: str, data: bytes) -> JobState:
    return documents.from_bytes(path, JobState, data)


def checkpoint_from(path: str, data: bytes) -> Checkpoint:
    return documents.from_bytes(path, Checkpoint, data)


def view_from(path: str, data: bytes) -> View:
    try:
        return values.view_from(data)
    except documents.NOT_READ as error:
        raise documents.corrupt(path, str(error)) from error


def placements_from(path: str, data: bytes) -> tuple[Placement, ...]:
    rows = documents.from_bytes(path, _PlacementsPage, data).placements
    return tuple(Placement(*msgspec.structs.astuple(row)) for row in rows)
