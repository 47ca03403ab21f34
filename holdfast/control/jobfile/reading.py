"""Job files: YAML in, a checked `JobSpec` out, and back. `KEYS` is the whole schema: the parser
reads by it, and `jobfile_schema` makes the page and the schema for editors from it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final, TypeVar

import yaml

from holdfast.control.decide import units
from holdfast.control.decide.spec import (
    CheckpointPolicy,
    JobSpec,
    Mode,
    Network,
    Resources,
    RestartPolicy,
)
from holdfast.control.jobfile import environment, outputs, probes, triggers
from holdfast.control.jobfile.tree import (
    COMMAND_SCHEMA,
    NAME,
    VALUE_SCHEMA,
    At,
    JobFileKey,
    compose,
    digits,
    nearest,
    usage,
    words_of,
)
from holdfast.wire.limits import JOB_LANES_MAX, JOB_NAME_CHARACTERS_MAX, JOB_PRIORITY_MAX

# What one view can list within a frame of the coordination plane.
JOB_WORKERS_MAX: Final = 10_000

E = TypeVar("E", bound=Enum)
_SETTING = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)


# --- the readers of single keys ---------------------------------------------------------------


def _workers(at: At) -> tuple[int, int]:
    if isinstance(at.node, yaml.ScalarNode):
        count = at.whole(1, JOB_WORKERS_MAX)
        return count, count
    found = at.fields(WORKERS)
    least = found.get("min", 1)
    most = found.get("max", least)
    if most < least:
        raise at.wrong(f"a range: max ({most}) is below min ({least})")
    return least, most


def _resources(at: At) -> Resources:
    found = at.fields(RESOURCES)
    resources = Resources(
        found.get("cpu", 1.0), found.get("memory", 0), found.get("gpu", 0), found.get("disk", 0)
    )
    if resources == Resources():
        raise at.wrong("something that a worker needs: cpu, memory, gpu or disk")
    return resources


def _cpu(at: At) -> float:
    expected = "a number of cores from 0 to 4096, in thousandths at the finest, such as 2 or 0.5"
    value = at.scalar(expected)
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,3}0*)?", value, re.ASCII) or float(value) > 4_096:
        raise at.wrong(expected)
    return float(value)


def _size(at: At) -> int:
    found = units.bytes_of(at.scalar(units.SIZE_EXAMPLE))
    if found is None:
        fix = f"say the unit: {at.path}: {at.node.value}GiB" if digits(at.node) else ""
        raise at.wrong(units.SIZE_EXAMPLE, fix)
    return found


def _one_of(kind: type[E]) -> Callable[[At], E]:
    known = [each.value for each in kind]

    def read(at: At) -> E:
        value = at.scalar(f"one of {', '.join(known)}")
        if value not in known:
            raise at.wrong(f"one of {', '.join(known)}", nearest(value, known))
        return kind(value)

    return read


def _checkpoint(at: At) -> CheckpointPolicy:
    found = at.fields(CHECKPOINT)
    if "every" in found:
        found["every_s"] = found.pop("every")
    elif "every_steps" in found:
        found["every_s"] = None
    return CheckpointPolicy(**found)


def _restart(at: At) -> RestartPolicy:
    found = at.fields(RESTART)
    names = {"backoff": "backoff_s", "backoff_max": "backoff_s_max"}
    names["forgiven_after"] = "forgiven_after_s"
    return RestartPolicy(**{names.get(key, key): value for key, value in found.items()})


def _settings(at: At) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in at.pairs():
        if not _SETTING.fullmatch(key.node.value):
            raise key.wrong("named by letters, digits, dots, dashes and underscores")
        found[key.node.value] = value.scalar("a single value")
    return found


# --- the keys -----------------------------------------------------------------------------------


def _whole(least: int, most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}


def _words(kind: type[Enum]) -> dict[str, Any]:
    return {"enum": [each.value for each in kind]}


_NAMED: Final = {
    "type": "string",
    "pattern": f"^{NAME.pattern}$",
    "maxLength": JOB_NAME_CHARACTERS_MAX,
}
_COUNT: Final = _whole(1, JOB_WORKERS_MAX)
_CHECKPOINT: Final = CheckpointPolicy()
_RESTART: Final = RestartPolicy()

WORKERS: Final[Mapping[str, JobFileKey]] = {
    "min": JobFileKey(
        lambda at: at.whole(1, JOB_WORKERS_MAX),
        "whole number",
        "1",
        "It does not start with fewer.",
        "workers: {min: 2, max: 8}",
        _COUNT,
    ),
    "max": JobFileKey(
        lambda at: at.whole(1, JOB_WORKERS_MAX),
        "whole number",
        "`min`",
        "It has so many while there is room.",
        "workers: {min: 2, max: 8}",
        _COUNT,
    ),
}
RESOURCES: Final[Mapping[str, JobFileKey]] = {
    "cpu": JobFileKey(
        _cpu,
        "number",
        "1",
        "Cores, in thousandths at the finest.",
        "resources: {cpu: 0.5}",
        {"type": "number", "minimum": 0, "maximum": 4_096},
    ),
    "memory": JobFileKey(
        _size,
        "size",
        "no bound",
        "A worker that takes more is ended.",
        "resources: {memory: 4GiB}",
        {"type": "string", "pattern": units.SIZE_PATTERN},
    ),
    "gpu": JobFileKey(
        lambda at: at.whole(0, 1_024),
        "whole number",
        "0",
        "GPUs of its own; others are hidden from it.",
        "resources: {gpu: 1}",
        _whole(0, 1_024),
    ),
    "disk": JobFileKey(
        _size,
        "size",
        "no bound",
        "What it may write: its working folder, with a copy of the code of its own, and its /tmp "
        "([programs](programs.md#disk)). A worker that has more there is ended.",
        "resources: {disk: 20GB}",
        {"type": "string", "pattern": units.SIZE_PATTERN},
    ),
}
CHECKPOINT: Final[Mapping[str, JobFileKey]] = {
    "every_steps": JobFileKey(
        lambda at: at.whole(1, 10**12),
        "whole number",
        "none",
        "One each so many steps. Alone it means: none by time.",
        "checkpoint: {every_steps: 500}",
        _whole(1, 10**12),
    ),
    "every": JobFileKey(
        lambda at: None if at.node.value == "never" else at.seconds(),
        "duration, or `never`",
        units.duration_of(_CHECKPOINT.every_s or 0.0),
        "One after so much time. With `every_steps`: whichever comes first.",
        "checkpoint: {every: 10m}",
        {"type": "string", "pattern": f"{units.DURATION_PATTERN}|^never$"},
    ),
    "keep": JobFileKey(
        lambda at: at.whole(1, 1_000),
        "whole number",
        f"{_CHECKPOINT.keep}",
        "How many of the newest stay.",
        "checkpoint: {keep: 5}",
        _whole(1, 1_000),
    ),
}
RESTART: Final[Mapping[str, JobFileKey]] = {
    "failures_max": JobFileKey(
        lambda at: at.whole(0, 1_000),
        "whole number",
        f"{_RESTART.failures_max}",
        "So many failures in a row end the job. A killed process or a lost machine is none.",
        "restart: {failures_max: 5}",
        _whole(0, 1_000),
    ),
    "backoff": JobFileKey(
        lambda at: at.seconds(zero=True),
        "duration",
        units.duration_of(_RESTART.backoff_s),
        "The pause after the first failure; it doubles with each.",
        "restart: {backoff: 2s}",
        units.DURATION_SCHEMA,
    ),
    "backoff_max": JobFileKey(
        lambda at: at.seconds(zero=True),
        "duration",
        units.duration_of(_RESTART.backoff_s_max),
        "The longest pause.",
        "restart: {backoff_max: 5m}",
        units.DURATION_SCHEMA,
    ),
    "forgiven_after": JobFileKey(
        At.seconds,
        "duration",
        units.duration_of(_RESTART.forgiven_after_s),
        "After so long without a failure, and with progress, counting begins anew.",
        "restart: {forgiven_after: 1h}",
        units.DURATION_SCHEMA,
    ),
}
KEYS: Final[Mapping[str, JobFileKey]] = {
    "name": JobFileKey(
        At.name,
        "name",
        "must be there",
        "What commands call it. It is free again when the job has ended and was removed.",
        "name: mnist",
        _NAMED,
    ),
    "command": JobFileKey(
        words_of,
        "text, or list of words",
        "must be there",
        "What each worker runs: split into words as a shell does, but run without one. "
        "`{port.NAME}` is the number of a port.",
        "command: python train.py --epochs 3",
        COMMAND_SCHEMA,
    ),
    "bundle": JobFileKey(
        At.text,
        "text",
        "none: an empty folder",
        "The code: a folder beside the job file, or a bundle `NAME`, `NAME@3` or `sha256:…`.",
        "bundle: .",
        {"type": "string"},
    ),
    "mode": JobFileKey(
        _one_of(Mode),
        "one of " + ", ".join(f"`{each.value}`" for each in Mode),
        "`sync`",
        "How workers of a training combine their work ([modes](modes.md)); `serve`: each worker is "
        "a replica, kept alive for itself ([programs](programs.md)).",
        "mode: serve",
        _words(Mode),
    ),
    "workers": JobFileKey(
        _workers,
        "whole number, or mapping",
        "1",
        "How many processes. One number is both bounds.",
        "workers: {min: 1, max: 4}",
        _COUNT,
        WORKERS,
    ),
    "lanes": JobFileKey(
        lambda at: at.whole(1, JOB_LANES_MAX),
        "whole number",
        "as many as `workers` may be; 1 if it serves",
        "The parts that a step is computed in, whoever holds them; at least one for each worker.",
        "lanes: 16",
        _whole(1, JOB_LANES_MAX),
    ),
    "resources": JobFileKey(
        _resources,
        "mapping",
        "one core",
        "What each worker needs, and is held to.",
        "resources: {cpu: 2, memory: 4GiB, gpu: 1, disk: 20GB}",
        {},
        RESOURCES,
    ),
    "queue": JobFileKey(
        At.name,
        "name",
        "`default`",
        "Whose share of the machines it takes: `holdfast queues`.",
        "queue: research",
        _NAMED,
    ),
    "priority": JobFileKey(
        lambda at: at.whole(-JOB_PRIORITY_MAX, JOB_PRIORITY_MAX),
        "whole number",
        "0",
        "Higher goes first, and may take room from lower ones of its queue.",
        "priority: 5",
        _whole(-JOB_PRIORITY_MAX, JOB_PRIORITY_MAX),
    ),
    "settings": JobFileKey(
        _settings,
        "mapping of single values",
        "none",
        "What a training reads as its settings; `holdfast set` changes them while it runs.",
        "settings: {lr: 0.01}",
        {
            "type": "object",
            "propertyNames": {"pattern": f"^{_SETTING.pattern}$"},
            "additionalProperties": VALUE_SCHEMA,
        },
    ),
    "checkpoint": JobFileKey(
        _checkpoint,
        "mapping",
        "every 5 minutes",
        "When a training is saved.",
        "checkpoint: {every: 10m, keep: 5}",
        {},
        CHECKPOINT,
    ),
    "restart": JobFileKey(
        _restart,
        "mapping",
        "three failures in a row end it",
        "What happens when its own code fails.",
        "restart: {failures_max: 5, backoff: 2s}",
        {},
        RESTART,
    ),
    "deadline": JobFileKey(
        At.seconds,
        "duration",
        "none",
        "Not done so long after it was submitted, it is ended as failed.",
        "deadline: 12h",
        units.DURATION_SCHEMA,
    ),
    "silence": JobFileKey(
        At.seconds,
        "duration",
        "half an hour",
        "A worker that told of its progress once, and then not for so long, has hung: it is ended "
        "and started again ([programs](programs.md)).",
        "silence: 90s",
        units.DURATION_SCHEMA,
    ),
    "network": JobFileKey(
        _one_of(Network),
        "one of " + ", ".join(f"`{each.value}`" for each in Network),
        "`encrypted`",
        "`trusted`: workers of a training speak without TLS between machines.",
        "network: trusted",
        _words(Network),
    ),
    **environment.KEYS,
    **outputs.KEYS,
    **probes.KEYS,
    **triggers.KEYS,
}


REQUIRED: Final = ("name", "command")


def parse(text: str, source: str) -> JobSpec:
    """The job that a file describes. `Usage`, with the line, for whatever is wrong with it."""
    root = compose(text, source)
    found = At(source, "", root).fields(KEYS)
    for key in REQUIRED:
        if key not in found:
            why = "every job needs a name and a command"
            raise usage(source, root, f"`{key}` is missing", why, f"add a line: {key}: ...")
    least, most = found.pop("workers", (1, 1))
    lanes = found.pop("lanes", most if found.get("mode") is not Mode.SERVE else 1)
    if lanes < most and found.get("mode") is not Mode.SERVE:
        why = f"a worker needs a lane at least; `lanes` is {lanes} and workers may be {most}"
        fix = f"lanes: {most}, or more"
        raise usage(source, root, "there are fewer lanes than workers", why, fix)
    for part in (probes, environment, outputs, triggers):
        part.check(found, lambda what, why, fix: usage(source, root, what, why, fix))
    for key in ("deadline", "silence"):
        if key in found:
            found[f"{key}_s"] = found.pop(key)
    return JobSpec(lanes=lanes, workers_min=least, workers_max=most, **found)


def dump(spec: JobSpec) -> str:
    """The file that `parse` reads as this job."""
    texts = (*spec.command, spec.bundle, *spec.settings.values(), *spec.env.values())
    texts += spec.requirements
    # Unusual line breaks would be folded into spaces; escaped they stay what they are.
    readable = all(text.isprintable() for text in texts)
    return yaml.safe_dump(_plain(spec), sort_keys=False, allow_unicode=readable)


def _plain(spec: JobSpec) -> dict[str, Any]:
    checkpoint, restart = spec.checkpoint, spec.restart
    every_s = checkpoint.every_s
    plain: dict[str, Any] = {
        "name": spec.name,
        "queue": spec.queue,
        "priority": spec.priority,
        "bundle": spec.bundle,
        "command": list(spec.command),
        "lanes": spec.lanes,
        "workers": {"min": spec.workers_min, "max": spec.workers_max},
        "resources": {
            "cpu": spec.resources.cpu,
            "memory": units.size_of(spec.resources.memory_bytes),
            "gpu": spec.resources.gpu,
            "disk": units.size_of(spec.resources.disk_bytes),
        },
        "mode": spec.mode.value,
        "checkpoint": {
            "every_steps": checkpoint.every_steps,
            "every": "never" if every_s is None else units.duration_of(every_s),
            "keep": checkpoint.keep,
        },
        "restart": {
            "failures_max": restart.failures_max,
            "backoff": units.duration_of(restart.backoff_s),
            "backoff_max": units.duration_of(restart.backoff_s_max),
            "forgiven_after": units.duration_of(restart.forgiven_after_s),
        },
        "settings": dict(spec.settings),
    }
    if checkpoint.every_steps is None:
        del plain["checkpoint"]["every_steps"]
    if spec.deadline_s is not None:
        plain["deadline"] = units.duration_of(spec.deadline_s)
    if spec.silence_s is not None:
        plain["silence"] = units.duration_of(spec.silence_s)
    if spec.network is not Network.ENCRYPTED:
        plain["network"] = spec.network.value
    for part in (probes, environment, outputs, triggers):
        plain |= part.plain(spec)
    return plain
