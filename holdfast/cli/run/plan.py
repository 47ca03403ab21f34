"""What a `holdfast run` wants, and what it does about the job that is already there. Pure.

A job is found again by its name. Its code and its arguments stay those that it began with: a
checkpoint of other code is another job. What may change between two runs of it are the number of
workers and the settings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from holdfast.client.scripts import Wanted, lanes_of, lanes_said
from holdfast.control.decide.facts import Intent, Job, Phase
from holdfast.wire.errors import Usage

_SETTING: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)


class Act(Enum):
    """What is done with the name."""

    BEGIN = "begin"  # there is no job of that name
    ANEW = "anew"  # the old one is removed first
    GO_ON = "go on"


@dataclass(frozen=True, slots=True)
class Choice:
    """What to do, and the sentences that tell the user why."""

    act: Act
    lanes: int
    said: tuple[str, ...] = ()
    changed: Mapping[str, str] = field(default_factory=dict)  # settings to change when going on


def decide(job: Job | None, wanted: Wanted, bundle: str) -> Choice:
    """What to do about `job`, which has the name now. `Usage` says what stands against it."""
    if job is None:
        return Choice(Act.BEGIN, lanes_of(wanted), lanes_said(wanted))
    if wanted.fresh:
        return _anew(wanted, f"{_left(job)}; starting anew (--fresh)")
    phase = job.status.phase
    if phase is Phase.SUCCEEDED:
        return _anew(wanted, f"{_left(job)}; starting anew")
    if phase.final and not job.checkpoints and not job.unreadable:
        return _anew(wanted, f"{_left(job)}; starting anew")
    if phase.final:
        raise Usage(
            f"{_left(job)}",
            why=f"{_kept(job)} kept, and a new start removes what is left of it",
            fix=f"start anew with --fresh, or beside it with --name {job.name}-2",
        )
    _check_same(job, wanted)
    said = [f"job {job.name} goes on from {_from(job)}"]
    if job.is_stranded:
        said = [f"{_kept(job)} tried again; --fresh starts anew at step 0"]
    if job.spec.bundle != bundle:
        said.append(
            f"the code in {wanted.script.parent} has changed since it began: it goes on with the"
            " code that it began with; --fresh starts anew with the present one"
        )
    if wanted.checkpoint not in (None, job.spec.checkpoint):
        said.append("checkpoints stay as it began: how often cannot be changed on the way")
    if wanted.resources.gpu != job.spec.resources.gpu:
        said.append(f"its workers have {amount_of_gpus(job.spec.resources.gpu)} each, as it began")
    known = settings_of(job)
    changed = {name: value for name, value in wanted.settings.items() if known.get(name) != value}
    said += [
        f"{name}={value} is given for the next step: `holdfast jobs {job.name}` says whether "
        "anything takes it"
        for name, value in changed.items()
    ]
    return Choice(Act.GO_ON, job.spec.lanes, tuple(said), changed)


def _anew(wanted: Wanted, said: str) -> Choice:
    return Choice(Act.ANEW, lanes_of(wanted), (said, *lanes_said(wanted)))


def amount_of_gpus(count: int) -> str:
    return "no GPU" if not count else "1 GPU" if count == 1 else f"{count} GPUs"


def in_the_way(others: Mapping[str, Job]) -> list[str]:
    """Jobs of this folder that would take the room of this one: their runs were killed."""
    return sorted(
        name
        for name, job in others.items()
        if job.intent is Intent.RUN and not job.status.phase.final
    )


def settings_of(job: Job) -> dict[str, str]:
    """The settings as they are, or will be: the spec's, then those changed at run time."""
    return {**job.spec.settings, **{each.name: each.value for each in job.settings}}


def _check_same(job: Job, wanted: Wanted) -> None:
    """`Usage` if the command asks for what this job cannot become."""
    if job.intent is Intent.STOP:
        raise Usage(
            f"job {job.name} is being stopped",
            why="its user asked for that",
            fix="start anew with --fresh, or beside it with another --name",
        )
    fix = f"start anew with --fresh, or beside it with --name {job.name}-2"
    if job.spec.command != wanted.command:
        raise Usage(
            f"job {job.name} began with another command",
            why=f"it was: {' '.join(job.spec.command)}",
            fix=f"give the same arguments to go on, or {fix}",
        )
    if wanted.lanes not in (None, job.spec.lanes):
        why = "its data order and its sums belong to lanes, so their number is fixed"
        raise Usage(f"job {job.name} has {job.spec.lanes} lanes", why=why, fix=fix)
    if wanted.mode not in (None, job.spec.mode):
        why = "its mode decides what a step is"
        raise Usage(f"job {job.name} began in mode {job.spec.mode.value}", why=why, fix=fix)
    if wanted.workers > job.spec.workers_max and wanted.workers_said:
        raise Usage(
            f"job {job.name} cannot have {wanted.workers} workers",
            why=f"it has {job.spec.lanes} lanes, and a worker needs one at least",
            fix=f"--workers {job.spec.workers_max}, or {fix}",
        )


def _left(job: Job) -> str:
    phase = job.status.phase
    if not phase.final:
        return f"job {job.name} stands at {_from(job)}"
    how = "has been stopped" if phase is Phase.STOPPED else f"has {phase.value}"
    at = f" at step {job.committed_step}" if phase is Phase.SUCCEEDED and job.checkpoints else ""
    return f"job {job.name} {how}{at}"


def _kept(job: Job) -> str:
    if not job.is_stranded:
        return f"its checkpoint of step {job.committed_step} is"
    count = len(job.unreadable)
    return (
        "its checkpoint, which could not be read, is"
        if count == 1
        else (f"its {count} checkpoints, none of which could be read, are")
    )


def _from(job: Job) -> str:
    return f"step {job.committed_step}" if job.checkpoints else "the beginning"


# --- words of the command line ------------------------------------------------------------------


def settings_from(pairs: list[str]) -> dict[str, str]:
    """`lr=0.1` and the like."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not _SETTING.fullmatch(name):
            raise Usage(f"--set {pair!r} is not NAME=VALUE", fix="for example --set lr=0.1")
        found[name] = value
    return found
