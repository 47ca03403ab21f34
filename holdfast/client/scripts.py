"""A training script as a job: its name, its command, its lanes and what each worker needs. Pure.

`holdfast run` and `Client.submit` make the same job of the same script.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from holdfast.client.texts import many
from holdfast.control.decide import units
from holdfast.control.decide.spec import CheckpointPolicy, JobSpec, Mode, Resources
from holdfast.wire.errors import Usage
from holdfast.wire.limits import JOB_LANES_MAX, JOB_NAME_CHARACTERS_MAX

# A laptop's lid is closed sooner than a cluster's machine is taken away.
RUN_CHECKPOINT_S: Final = 30.0

_ONE_CORE: Final = Resources(cpu=1.0)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_STEPS: Final = re.compile(r"([1-9][0-9]{0,11}) ?(?:steps?)", re.ASCII)
_LAUNCH: Final = "launch"
_LANES: Final = "lanes"
# How like one of ours an option must be to be taken for a slip of the hand.
_NEAR: Final = 0.8
# Options of other commands, and what `holdfast run` has instead.
_ELSEWHERE: Final[Mapping[str, str]] = {
    "--cluster": "holdfast run needs no cluster (--dir says where it keeps what it makes); "
    "a job of a cluster: holdfast submit JOB.YAML",
    "--agents": "holdfast run starts what it needs; how many processes: --workers",
    "--queue": "queues are of a cluster: holdfast submit JOB.YAML",
    "--priority": "priorities are of a cluster: holdfast submit JOB.YAML",
    "--env": "the script has the environment of this command: NAME=VALUE holdfast run …",
    "--gpus": "holdfast run has --gpu, for each worker",
    "--cpus": "holdfast run has --cpu, for each worker",
}


@dataclass(frozen=True, slots=True)
class ScriptRun:
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
    workers_given: bool = True  # or as many as there are devices: then fewer will do
    script_lanes: ScriptLanes | None = None  # what the script says itself

    @property
    def command(self) -> tuple[str, ...]:
        name = self.script.name
        # Python would take `-x.py` for options.
        return ("python", f"./{name}" if name.startswith("-") else name, *self.arguments)


def spec_of(wanted: ScriptRun, bundle: str, lanes: int) -> JobSpec:
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


def lanes_of(wanted: ScriptRun) -> int:
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
        by_script = script is not None and wanted.lanes is None
        why = f", and {_place(wanted)} says {lanes}" if by_script else ""
        fewer = f"--workers {lanes}; or, for other bits, " if by_script else ""
        raise Usage(
            f"{wanted.workers} workers cannot share {many(lanes, 'lane')}",
            why=f"a worker needs a lane at least{why}",
            fix=f"{fewer}--lanes {wanted.workers}, or more",
        )
    return lanes


def lanes_notes(wanted: ScriptRun) -> tuple[str, ...]:
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


def _place(wanted: ScriptRun) -> str:
    """`train.py:12`."""
    assert wanted.script_lanes is not None
    return f"{wanted.script.name}:{wanted.script_lanes.line}"


def other_lanes(spec: JobSpec, folder: Path) -> str:
    """A sentence, if the job's script says another number of lanes than the job has: then its bits
    are not those of `python SCRIPT`. Reads the script, if its code is a folder here."""
    named = next((word for word in spec.command if word.endswith(".py")), None)
    path = folder / Path(spec.bundle or ".").expanduser() / (named or "")
    if spec.serves or named is None or not path.is_file():
        return ""
    own = lanes_in(path.read_bytes().decode(errors="replace"))
    if own is None or own.count in (None, spec.lanes):
        return ""
    return (
        f"{many(spec.lanes, 'lane')}, as the job has; {named}:{own.line} says {own.count}: other"
        f" lanes give other bits. With `lanes: {own.count}` in the job file they are the script's"
    )


# --- words of people --------------------------------------------------------------------------


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


@dataclass(frozen=True, slots=True)
class ScriptLanes:
    """`train.launch(main, lanes=…)` of a script. `count` None: only known when it runs."""

    count: int | None
    line: int


def lanes_in(source: str) -> ScriptLanes | None:
    """What the script says itself; None: nothing, or it cannot be read as Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # whoever runs it says so
        return None
    found = [
        ScriptLanes(_number(keyword.value, tree), keyword.value.lineno)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and _name(call.func) == _LAUNCH
        for keyword in call.keywords
        if keyword.arg == _LANES and not _is_none(keyword.value)
    ]
    if not found:
        return None
    if len({each.count for each in found}) > 1:
        return ScriptLanes(None, found[0].line)
    return found[0]


def strange_options(
    arguments: Sequence[str], source: str, ours: Collection[str]
) -> list[tuple[str, str]]:
    """Options among the script's arguments that it does not name and that somebody may have meant
    for us: each with what we have. `ours`: the options of `holdfast run`."""
    found = []
    for word in arguments:
        name = word.partition("=")[0]
        if not name.startswith("--") or _names(source, name):
            continue
        near = difflib.get_close_matches(name, sorted(ours), n=1, cutoff=_NEAR)
        if name in _ELSEWHERE:
            found.append((name, _ELSEWHERE[name]))
        elif near:
            found.append((name, f"holdfast run has {near[0]}"))
    return found


def _name(called: ast.expr) -> str:
    if isinstance(called, ast.Attribute):
        return called.attr
    return called.id if isinstance(called, ast.Name) else ""


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _number(value: ast.expr, tree: ast.Module) -> int | None:
    """A number that stands there, or a name that is given one number at the top of the script and
    nothing else anywhere."""
    if isinstance(value, ast.Constant):
        count = value.value
        return count if isinstance(count, int) and count is not True and count > 0 else None
    if not isinstance(value, ast.Name):
        return None
    stored = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id == value.id and isinstance(node.ctx, ast.Store)
    ]
    given = [
        each.value
        for each in tree.body
        if isinstance(each, ast.Assign | ast.AnnAssign)
        and stored
        and stored[0] in (each.targets if isinstance(each, ast.Assign) else [each.target])
    ]
    if len(stored) != 1 or not given or not isinstance(given[0], ast.Constant):
        return None
    return _number(given[0], tree)


def _names(source: str, option: str) -> bool:
    """Whether the option stands in the text, as it is or as the name that parsers make of it."""
    plain = re.escape(option.lstrip("-")).replace(r"\-", "[-_]")
    return re.search(rf"(?<![\w-]){plain}(?![\w-])|--{plain}(?![\w-])", source) is not None
