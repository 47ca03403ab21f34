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
from pathlib import Path
from typing import Final

from holdfast.cli.script_words import ScriptLanes
from holdfast.cli.times import many
from holdfast.control import units
from holdfast.control.facts import Intent, Job, Phase
from holdfast.control.spec import CheckpointPolicy, JobSpec, Mode, Resources
from holdfast.wire.errors import Usage
from holdfast.wire.limits import JOB_LANES_MAX, JOB_NAME_CHARACTERS_MAX, RUN_CHECKPOINT_S

_ONE_CORE: Final = Resources(cpu=1.0)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_STEPS: Final = re.compile(r"([1-9][0-9]{0,11}) ?(?:steps?)", re.ASCII)
_SETTING: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The command's options, checked. `lanes`, `checkpoint`, `mode` None: not said."""

    script: Path
    arguments: tuple[str, ...]
    name: str
    workers: int
    lanes: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    checkpoint: CheckpointPolicy | None = None
    resources: Resources = _ONE_CORE
    fresh: bool = False
    mode: Mode | None = None
    workers_said: bool = True  # or as many as there are devices: then fewer will do
    script_lanes: ScriptLanes | None = None  # what the script says itself

    @property
    def command(self) -> tuple[str, ...]:
        return ("python", self.script.name, *self.arguments)


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


def spec_of(wanted: Wanted, bundle: str, lanes: int) -> JobSpec:
    """The job. It may have as many workers as it has lanes; how many it is to have is said by
    scaling it, so that another run of it may have more or fewer."""
    return JobSpec(
        wanted.name,
        wanted.command,
        bundle=bundle,
        lanes=lanes,
        workers_min=1,
        workers_max=lanes,
        resources=wanted.resources,
        mode=wanted.mode or Mode.SYNC,
        checkpoint=wanted.checkpoint or CheckpointPolicy(every_s=RUN_CHECKPOINT_S),
        settings=dict(wanted.settings),
    )


def lanes_of(wanted: Wanted) -> int:
    """As the command says, or the script; otherwise the smallest power of two that gives each
    worker a lane."""
    script = wanted.script_lanes
    lanes = wanted.lanes or (script.count if script else None)
    if lanes is None:
        return 1 << (wanted.workers - 1).bit_length()
    if lanes > JOB_LANES_MAX:  # of the script: what the command says was looked at before
        why = f"{_place(wanted)} says so, and a job has at most {JOB_LANES_MAX:,}"
        raise Usage(f"{lanes:,} lanes are too many", why=why, fix="say fewer there, or by --lanes")
    if lanes < wanted.workers:
        said = script is not None and wanted.lanes is None
        why = f", and {_place(wanted)} says {lanes}" if said else ""
        fewer = f"--workers {lanes}; or, for other bits, " if said else ""
        raise Usage(
            f"{wanted.workers} workers cannot share {many(lanes, 'lane')}",
            why=f"a worker needs a lane at least{why}",
            fix=f"{fewer}--lanes {wanted.workers}, or more",
        )
    return lanes


def lanes_said(wanted: Wanted) -> tuple[str, ...]:
    """Who says how many lanes there are, in a sentence: the result depends on their number. Nothing
    where it is as if nobody had said anything."""
    lanes, script = many(lanes_of(wanted), "lane"), wanted.script_lanes
    if wanted.lanes is not None:
        if script is None or script.count in (None, wanted.lanes):
            return ()
        return (
            f"{lanes}, said by --lanes; {_place(wanted)} says {script.count}: other lanes give"
            " other bits",
        )
    if script is not None and script.count is not None:
        return (f"{lanes}, said by {_place(wanted)}",)
    if script is not None:
        unknown = f"what {_place(wanted)} says is only known when it runs"
        return (f"{lanes}, for {many(wanted.workers, 'worker')}: {unknown}; --lanes says it",)
    if wanted.workers == 1:
        return ()
    return (
        f"{lanes}, for {many(wanted.workers, 'worker')}; the result depends on the lanes: --lanes"
        f" {lanes_of(wanted)} keeps it with any number of workers",
    )


def _place(wanted: Wanted) -> str:
    """`train.py:12`."""
    assert wanted.script_lanes is not None
    return f"{wanted.script.name}:{wanted.script_lanes.line}"


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


def name_of(script: Path) -> str:
    """A job's name from its script's: what cannot be in a name becomes a dash."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", script.stem).strip("._-")
    return plain[:JOB_NAME_CHARACTERS_MAX] or "job"


def checked_name(name: str) -> str:
    if not _NAME.fullmatch(name) or len(name) > JOB_NAME_CHARACTERS_MAX:
        raise Usage(
            f"{name[:80]!r} cannot be the name of a job",
            why=f"a name has at most {JOB_NAME_CHARACTERS_MAX} letters, digits, '.', '_' and '-'",
            fix="choose another --name",
        )
    return name


def checkpoint_of(text: str) -> CheckpointPolicy:
    """`30s`, `5m`, `100steps` or `never`."""
    if text == "never":
        return CheckpointPolicy(every_s=None)
    steps = _STEPS.fullmatch(text.strip())
    if steps is not None:
        return CheckpointPolicy(every_steps=int(steps[1]), every_s=None)
    seconds = units.seconds_of(text)
    if seconds is None or seconds <= 0:
        raise Usage(
            f"--checkpoint-every {text!r} is neither a time nor a number of steps",
            fix="for example --checkpoint-every 30s, 5m, 100steps or never",
        )
    return CheckpointPolicy(every_s=seconds)


def settings_from(pairs: list[str]) -> dict[str, str]:
    """`lr=0.1` and the like."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not _SETTING.fullmatch(name):
            raise Usage(f"--set {pair!r} is not NAME=VALUE", fix="for example --set lr=0.1")
        found[name] = value
    return found


def mode_of(text: str) -> Mode:
    """A way to train; serving has commands of its own."""
    known = [mode.value for mode in (Mode.SYNC, Mode.LOCAL, Mode.ASYNC)]
    if text not in known:
        raise Usage(
            f"--mode {text!r} is not {', '.join(known[:-1])} or {known[-1]}", fix="--mode sync"
        )
    return Mode(text)


def check_counts(workers: int | None, lanes: int | None) -> None:
    for what, count in (("--workers", workers), ("--lanes", lanes)):
        if count is not None and not 1 <= count <= JOB_LANES_MAX:
            raise Usage(f"{what} {count} is not from 1 to {JOB_LANES_MAX}", fix=f"{what} 4")


def resources_of(
    cpu: float | None, memory: str | None, gpu: int, disk: str | None = None
) -> Resources:
    """What each worker needs: a core, if nothing is said."""
    if cpu is not None and not (0 < cpu <= 4_096):
        raise Usage(f"--cpu {cpu:g} is not a number of cores", fix="for example --cpu 2 or 0.5")
    if not 0 <= gpu <= 1_024:
        raise Usage(f"--gpu {gpu} is not a number of GPUs", fix="--gpu 1")
    sizes = []
    for option, text in (("--memory", memory), ("--disk", disk)):
        size = units.bytes_of(text) if text is not None else 0
        if size is None:
            raise Usage(f"{option} {text!r} is not {units.SIZE_EXAMPLE}", fix=f"{option} 4GiB")
        sizes.append(size)
    return Resources(1.0 if cpu is None else round(cpu, 3), sizes[0], gpu, sizes[1])
