"""Job files: YAML in, a checked `JobSpec` out, and back.

The YAML is read as a tree with line numbers, not as Python objects: so a mistake is shown with its
line, a key that is given twice is seen, and a setting keeps the text that its user wrote.
`KEYS` is the whole schema.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final, TypeVar

import yaml

from holdfast.control import jobfile_probes, units
from holdfast.control.spec import (
    CheckpointPolicy,
    JobSpec,
    Mode,
    Network,
    Resources,
    RestartPolicy,
)
from holdfast.wire.errors import Usage
from holdfast.wire.limits import (
    JOB_FILE_BYTES_MAX,
    JOB_LANES_MAX,
    JOB_NAME_CHARACTERS_MAX,
    JOB_PRIORITY_MAX,
    JOB_WORKERS_MAX,
)

# A name becomes a node's, a folder's and a pod's: no slash, no leading dot, nothing to be quoted.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
E = TypeVar("E", bound=Enum)
_SETTING = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)
_DURATION_S_MAX: Final = 10 * 365 * 86_400.0


class _At:
    """A value of the file: where it stands, and how it is read. Every reader says what it expected
    if it finds something else."""

    def __init__(self, source: str, path: str, node: yaml.Node) -> None:
        self.source = source
        self.path = path
        self.node = node

    def wrong(self, expected: str, fix: str = "") -> Usage:
        return _usage(
            self.source, self.node, f"`{self.path}` should be {expected}", self._is(), fix
        )

    def _is(self) -> str:
        if isinstance(self.node, yaml.MappingNode):
            return "it is a mapping"
        if isinstance(self.node, yaml.SequenceNode):
            return "it is a list"
        return f"it is {self.node.value!r}" if self.node.value else "it is empty"

    def fields(self, readers: Mapping[str, Callable[[_At], Any]]) -> dict[str, Any]:
        """Each key through its reader; an unknown or doubled key is an error."""
        if not isinstance(self.node, yaml.MappingNode):
            raise self.wrong(f"a mapping with some of: {', '.join(readers)}")
        found: dict[str, Any] = {}
        for key, value in self.pairs():
            if key.node.value not in readers:
                raise _unknown(self.source, key.node, key.path, readers)
            found[key.node.value] = readers[key.node.value](value)
        return found

    def pairs(self) -> list[tuple[_At, _At]]:
        if not isinstance(self.node, yaml.MappingNode):
            raise self.wrong("a mapping")
        pairs: list[tuple[_At, _At]] = []
        seen: dict[str, int] = {}
        for key, value in self.node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _usage(self.source, key, "a key must be a plain word", "", "")
            path = f"{self.path}.{key.value}" if self.path else key.value
            if key.value in seen:
                why = f"it is also in line {seen[key.value]}"
                raise _usage(
                    self.source, key, f"`{path}` is given twice", why, "remove one of them"
                )
            seen[key.value] = key.start_mark.line + 1
            pairs.append((_At(self.source, path, key), _At(self.source, path, value)))
        return pairs

    def items(self, expected: str) -> list[_At]:
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.wrong(expected)
        return [
            _At(self.source, f"{self.path}[{index}]", item)
            for index, item in enumerate(self.node.value)
        ]

    def scalar(self, expected: str) -> str:
        """The text of a single value, whatever YAML takes it for."""
        if not isinstance(self.node, yaml.ScalarNode) or self.node.tag.endswith(":null"):
            raise self.wrong(expected)
        return str(self.node.value)

    def text(self) -> str:
        value = self.scalar("text")
        if not self.node.tag.endswith(":str"):
            raise self.wrong("text", f"put it in quotes: {self.path}: '{value}'")
        return value

    def whole(self, least: int, most: int) -> int:
        expected = f"a whole number from {least} to {most}"
        value = self.scalar(expected)
        if not re.fullmatch(r"-?[0-9]{1,15}", value) or not least <= int(value) <= most:
            raise self.wrong(expected)
        return int(value)

    def seconds(self, *, zero: bool = False) -> float:
        found = units.seconds_of(self.scalar(units.DURATION_EXAMPLE))
        if found is None:
            fix = f"say the unit: {self.path}: {self.node.value}s" if _digits(self.node) else ""
            raise self.wrong(units.DURATION_EXAMPLE, fix)
        if found > _DURATION_S_MAX or (found < 0.001 and not (zero and found == 0)):
            raise self.wrong("a duration from 1ms to 3650d")
        return found

    def name(self) -> str:
        value = self.text()
        if not _NAME.fullmatch(value) or len(value) > JOB_NAME_CHARACTERS_MAX:
            raise self.wrong(
                f"a name of at most {JOB_NAME_CHARACTERS_MAX} letters, digits, dots, dashes and"
                " underscores that begins with a letter or digit"
            )
        return value


# --- the readers of single keys ---------------------------------------------------------------


def _command(at: _At) -> tuple[str, ...]:
    expected = "a command line, or a list of words"
    if isinstance(at.node, yaml.SequenceNode):
        words = tuple(item.scalar("a word") for item in at.items(expected))
    else:
        try:
            words = tuple(shlex.split(at.scalar(expected)))
        except ValueError as error:
            raise at.wrong(f"{expected}: {error}") from error
    if not words or not words[0]:
        raise at.wrong(expected)
    return words


def _workers(at: _At) -> tuple[int, int]:
    if isinstance(at.node, yaml.ScalarNode):
        count = at.whole(1, JOB_WORKERS_MAX)
        return count, count
    found = at.fields({"min": _worker_count, "max": _worker_count})
    least = found.get("min", 1)
    most = found.get("max", least)
    if most < least:
        raise at.wrong(f"a range: max ({most}) is below min ({least})")
    return least, most


def _worker_count(at: _At) -> int:
    return at.whole(1, JOB_WORKERS_MAX)


def _resources(at: _At) -> Resources:
    found = at.fields({"cpu": _cpu, "memory": _memory, "gpu": lambda gpu: gpu.whole(0, 1_024)})
    room = Resources(found.get("cpu", 1.0), found.get("memory", 0), found.get("gpu", 0))
    if room == Resources():
        raise at.wrong("something that a worker needs: cpu, memory or gpu")
    return room


def _cpu(at: _At) -> float:
    expected = "a number of cores from 0 to 4096, in thousandths at the finest, such as 2 or 0.5"
    value = at.scalar(expected)
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,3}0*)?", value, re.ASCII) or float(value) > 4_096:
        raise at.wrong(expected)
    return float(value)


def _memory(at: _At) -> int:
    found = units.bytes_of(at.scalar(units.SIZE_EXAMPLE))
    if found is None:
        fix = f"say the unit: {at.path}: {at.node.value}GiB" if _digits(at.node) else ""
        raise at.wrong(units.SIZE_EXAMPLE, fix)
    return found


def _one_of(kind: type[E]) -> Callable[[_At], E]:
    known = [each.value for each in kind]

    def read(at: _At) -> E:
        value = at.scalar(f"one of {', '.join(known)}")
        if value not in known:
            raise at.wrong(f"one of {', '.join(known)}", _nearest(value, known))
        return kind(value)

    return read


def _checkpoint(at: _At) -> CheckpointPolicy:
    found = at.fields(
        {
            "every_steps": lambda steps: steps.whole(1, 10**12),
            "every": lambda every: None if every.node.value == "never" else every.seconds(),
            "keep": lambda keep: keep.whole(1, 1_000),
        }
    )
    if "every" in found:
        found["every_s"] = found.pop("every")
    elif "every_steps" in found:
        found["every_s"] = None
    return CheckpointPolicy(**found)


def _restart(at: _At) -> RestartPolicy:
    found = at.fields(
        {
            "failures_max": lambda count: count.whole(0, 1_000),
            "backoff": lambda pause: pause.seconds(zero=True),
            "backoff_max": lambda pause: pause.seconds(zero=True),
            "forgiven_after": lambda after: after.seconds(),
        }
    )
    names = {"backoff": "backoff_s", "backoff_max": "backoff_s_max"}
    names["forgiven_after"] = "forgiven_after_s"
    return RestartPolicy(**{names.get(key, key): value for key, value in found.items()})


def _settings(at: _At) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in at.pairs():
        if not _SETTING.fullmatch(key.node.value):
            raise key.wrong("named by letters, digits, dots, dashes and underscores")
        found[key.node.value] = value.scalar("a single value")
    return found


def _notify(at: _At) -> tuple[str, ...]:
    return tuple(item.text() for item in at.items("a list of addresses"))


KEYS: Final[Mapping[str, Callable[[_At], Any]]] = {
    "name": _At.name,
    "queue": _At.name,
    "priority": lambda at: at.whole(-JOB_PRIORITY_MAX, JOB_PRIORITY_MAX),
    "bundle": _At.text,
    "command": _command,
    "lanes": lambda at: at.whole(1, JOB_LANES_MAX),
    "workers": _workers,
    "resources": _resources,
    "mode": _one_of(Mode),
    "checkpoint": _checkpoint,
    "restart": _restart,
    "settings": _settings,
    "deadline": _At.seconds,
    "silence": _At.seconds,
    "notify": _notify,
    "network": _one_of(Network),
    "ports": jobfile_probes.ports,
    "ready": jobfile_probes.ready,
    "live": jobfile_probes.live,
}


def parse(text: str, source: str) -> JobSpec:
    """The job that a file describes. `Usage`, with the line, for whatever is wrong with it."""
    root = _compose(text, source)
    found = _At(source, "", root).fields(KEYS)
    for key in ("name", "command"):
        if key not in found:
            why = "every job needs a name and a command"
            raise _usage(source, root, f"`{key}` is missing", why, f"add a line: {key}: ...")
    least, most = found.pop("workers", (1, 1))
    lanes = found.pop("lanes", most if found.get("mode") is not Mode.SERVE else 1)
    if lanes < most and found.get("mode") is not Mode.SERVE:
        why = f"a worker needs a lane at least; `lanes` is {lanes} and workers may be {most}"
        fix = f"lanes: {most}, or more"
        raise _usage(source, root, "there are fewer lanes than workers", why, fix)
    jobfile_probes.check(found, lambda what, why, fix: _usage(source, root, what, why, fix))
    for key in ("deadline", "silence"):
        if key in found:
            found[f"{key}_s"] = found.pop(key)
    return JobSpec(lanes=lanes, workers_min=least, workers_max=most, **found)


def dump(spec: JobSpec) -> str:
    """The file that `parse` reads as this job."""
    texts = (*spec.command, spec.bundle, *spec.settings.values(), *spec.notify)
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
        "notify": list(spec.notify),
    }
    if checkpoint.every_steps is None:
        del plain["checkpoint"]["every_steps"]
    if spec.deadline_s is not None:
        plain["deadline"] = units.duration_of(spec.deadline_s)
    if spec.silence_s is not None:
        plain["silence"] = units.duration_of(spec.silence_s)
    if spec.network is not Network.ENCRYPTED:
        plain["network"] = spec.network.value
    plain |= jobfile_probes.plain(spec)
    return plain


# --- the tree and its mistakes ----------------------------------------------------------------


def _compose(text: str, source: str) -> yaml.Node:
    if len(text.encode(errors="replace")) > JOB_FILE_BYTES_MAX:
        raise Usage(
            f"{source} is too large for a job file",
            why=f"it has more than {JOB_FILE_BYTES_MAX} bytes",
            fix="put data into the bundle, and name it in the command",
        )
    try:
        root: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{source}, line {mark.line + 1}" if mark else source
        problem = getattr(error, "problem", None) or type(error).__name__
        raise Usage(f"{where}: this is not YAML", why=str(problem), fix=_YAML_FIX) from error
    if root is None:
        raise Usage(f"{source} is empty", why="a job needs a name and a command", fix=_YAML_FIX)
    return root


_YAML_FIX: Final = "a job file has lines such as `name: my-job` and `command: python train.py`"


def _usage(source: str, node: yaml.Node, what: str, why: str, fix: str) -> Usage:
    return Usage(f"{source}, line {node.start_mark.line + 1}: {what}", why=why, fix=fix)


def _unknown(source: str, node: yaml.Node, path: str, known: Mapping[str, object]) -> Usage:
    what = f"`{path}` is not a key of a job file"
    return _usage(
        source, node, what, f"known here: {', '.join(known)}", _nearest(node.value, known)
    )


def _nearest(word: str, known: Mapping[str, object] | list[str]) -> str:
    near = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.5)
    return f"did you mean `{near[0]}`?" if near else ""


def _digits(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.value.replace(".", "", 1).isdigit()
