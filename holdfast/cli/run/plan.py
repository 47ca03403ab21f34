"""What a `holdfast run` wants, and what it does about the job that is already there. Pure.

A job is found again by its name. Its code and its arguments stay those that it began with: a
checkpoint of other code is another job. What may change between two runs of it are the number of
workers and the settings.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from holdfast.client.scripts import ScriptRun, lanes_notes, lanes_of
from holdfast.client.texts import many
from holdfast.control.decide.facts import Intent, JobRecord, Phase
from holdfast.wire.errors import Usage

_SETTING: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)


class Act(Enum):
    """What is done with the name."""

    BEGIN = "begin"  # there is no job of that name
    ANEW = "anew"  # the old one is removed first
    GO_ON = "go on"


@dataclass(frozen=True, slots=True)
class RunDecision:
    """What to do, and the sentences that tell the user why."""

    act: Act
    lanes: int
    notes: tuple[str, ...] = ()
    changed: Mapping[str, str] = field(default_factory=dict)  # settings to change when going on


def decide(job: JobRecord | None, wanted: ScriptRun, bundle: str) -> RunDecision:
    """What to do about `job`, which has the name now. `Usage` says what stands against it."""
    if job is None:
        return RunDecision(Act.BEGIN, lanes_of(wanted), lanes_notes(wanted))
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
    notes = [f"job {job.name} goes on from {_from(job)}"]
    if job.is_stranded:
        notes = [f"{_kept(job)} tried again; --fresh starts anew at step 0"]
    if job.spec.bundle != bundle:
        notes.append(
            f"the code in {wanted.script.parent} has changed since it began: it goes on with the"
            " code that it began with; --fresh starts anew with the present one"
        )
    if wanted.checkpoint not in (None, job.spec.checkpoint):
        notes.append("checkpoints stay as it began: how often cannot be changed on the way")
    if wanted.resources.gpu != job.spec.resources.gpu:
        notes.append(f"its workers have {amount_of_gpus(job.spec.resources.gpu)} each, as it began")
    known = settings_of(job)
    changed = {name: value for name, value in wanted.settings.items() if known.get(name) != value}
    notes += [
        f"{name}={value} is given for the next step: `holdfast jobs {job.name}` says whether "
        "anything takes it"
        for name, value in changed.items()
    ]
    return RunDecision(Act.GO_ON, job.spec.lanes, tuple(notes), changed)


def _anew(wanted: ScriptRun, note: str) -> RunDecision:
    return RunDecision(Act.ANEW, lanes_of(wanted), (note, *lanes_notes(wanted)))


def amount_of_gpus(count: int) -> str:
    return "no GPU" if not count else "1 GPU" if count == 1 else f"{count} GPUs"


def in_the_way(others: Mapping[str, JobRecord]) -> list[str]:
    """Jobs of this folder that would take the room of this one: their runs were killed."""
    return sorted(
        name
        for name, job in others.items()
        if job.intent is Intent.RUN and not job.status.phase.final
    )


def settings_of(job: JobRecord) -> dict[str, str]:
    """The settings as they are, or will be: the spec's, then those changed at run time."""
    return {**job.spec.settings, **{each.name: each.value for each in job.settings}}


def _check_same(job: JobRecord, wanted: ScriptRun) -> None:
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
    if wanted.workers > job.spec.workers_max and wanted.workers_given:
        raise Usage(
            f"job {job.name} cannot have {wanted.workers} workers",
            why=f"it has {job.spec.lanes} lanes, and a worker needs one at least",
            fix=f"--workers {job.spec.workers_max}, or {fix}",
        )


def _left(job: JobRecord) -> str:
    phase = job.status.phase
    if not phase.final:
        return f"job {job.name} stands at {_from(job)}"
    how = "has been stopped" if phase is Phase.STOPPED else f"has {phase.value}"
    at = f" at step {job.committed_step}" if phase is Phase.SUCCEEDED and job.checkpoints else ""
    return f"job {job.name} {how}{at}"


def _kept(job: JobRecord) -> str:
    if not job.is_stranded:
        return f"its checkpoint of step {job.committed_step} is"
    count = len(job.unreadable)
    return (
        "its checkpoint, which could not be read, is"
        if count == 1
        else (f"its {count} checkpoints, none of which could be read, are")
    )


def _from(job: JobRecord) -> str:
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


@dataclass(frozen=True, slots=True)
class Devices:
    """`workers`: how many there are to be. `gpu`: GPUs for each. `share`: workers on each GPU;
    None: one. `note`: what is used, in a sentence."""

    workers: int
    gpu: int
    share: int | None
    note: str


def choose(
    names: Sequence[str],
    *,
    workers: int | None,
    lanes: int | None,
    gpu: int | None,
    share: int | None,
) -> Devices:
    """What a run uses of the GPUs of these names. None: its user has not said it.

    What there is is used: a worker for each GPU, or as many as were asked for, each with one of
    its own; more workers than GPUs share them. `--gpu 0` is the CPU.
    """
    if gpu == 0 or not names:
        count = workers or 1
        why = "as --gpu 0 says" if gpu == 0 else "no GPU is visible"
        if gpu:
            return Devices(count, gpu, share, f"no GPU is visible, and each worker needs {gpu}")
        return Devices(count, 0, share, f"on the CPU: {why}")
    each = gpu or 1
    fitting = max(1, len(names) * (share or 1) // each)
    count = workers or (fitting if lanes is None else min(fitting, lanes))
    if gpu is None and share is None and count > fitting:
        share = -(-count // len(names))
    used = min(len(names), -(-count * each // (share or 1)))
    what = f"{many(used, 'GPU')}: {_named(names[:used])}"
    if (share or 1) > 1 and count > used:
        return Devices(count, each, share, f"{many(count, 'worker')} share {what}")
    return Devices(count, each, share, f"on {what}")


def _named(names: Sequence[str]) -> str:
    """`NVIDIA H200`, or `2 NVIDIA H200 and 1 NVIDIA L4`."""
    counts = Counter(names)
    if len(counts) == 1:
        return names[0]
    return " and ".join(f"{count} {name}" for name, count in counts.items())
