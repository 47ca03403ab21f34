"""A job file as a tree with line numbers, and what a key of one is.

The YAML is read as a tree, not as Python objects: so a mistake is shown with its line, a key that
is given twice is seen, and a setting keeps the text that its user wrote. `JobFileKey` is all that
there is to know of a key: the parser reads by it, and the page and the schema for editors
are made from it.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from holdfast.control.decide import units
from holdfast.wire.errors import Usage
from holdfast.wire.limits import JOB_NAME_CHARACTERS_MAX

# A page or two of text; settings may be many, data belongs into the bundle.
JOB_FILE_BYTES_MAX: Final = 128 * 1024

# A name becomes a node's, a folder's and a pod's: no slash, no leading dot, nothing to be quoted.
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
VALUE_SCHEMA: Final[Mapping[str, Any]] = {"type": ["string", "number", "boolean"]}
COMMAND_SCHEMA: Final[Mapping[str, Any]] = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": VALUE_SCHEMA, "minItems": 1},
    ]
}
_DURATION_S_MAX: Final = 10 * 365 * 86_400.0


@dataclass(frozen=True, slots=True)
class JobFileKey:
    """A key of a job file. `schema` is what an editor checks: it refuses nothing that `read`
    takes, but for a number in quotes. `keys`: those of a mapping below it, of which exactly one of
    `one_of` must be there; `schema` is then the other form that it may have, if any. `example` is
    its lines in a file."""

    read: Callable[[At], Any]
    kind: str
    default: str
    means: str
    example: str
    schema: Mapping[str, Any]
    keys: Mapping[str, JobFileKey] = field(default_factory=dict)
    one_of: tuple[str, ...] = ()


class At:
    """A value of the file: where it stands, and how it is read. Every reader says what it expected
    if it finds something else."""

    def __init__(self, source: str, path: str, node: yaml.Node) -> None:
        self.source = source
        self.path = path
        self.node = node

    def wrong(self, expected: str, fix: str = "") -> Usage:
        return usage(self.source, self.node, f"`{self.path}` should be {expected}", self._is(), fix)

    def _is(self) -> str:
        if isinstance(self.node, yaml.MappingNode):
            return "it is a mapping"
        if isinstance(self.node, yaml.SequenceNode):
            return "it is a list"
        return f"it is {self.node.value!r}" if self.node.value else "it is empty"

    def fields(self, keys: Mapping[str, JobFileKey]) -> dict[str, Any]:
        """Each key through its reader; an unknown or doubled key is an error."""
        if not isinstance(self.node, yaml.MappingNode):
            raise self.wrong(f"a mapping with some of: {', '.join(keys)}")
        found: dict[str, Any] = {}
        for key, value in self.pairs():
            if key.node.value not in keys:
                raise _unknown(self.source, key.node, key.path, keys)
            found[key.node.value] = keys[key.node.value].read(value)
        return found

    def pairs(self) -> list[tuple[At, At]]:
        if not isinstance(self.node, yaml.MappingNode):
            raise self.wrong("a mapping")
        pairs: list[tuple[At, At]] = []
        seen: dict[str, int] = {}
        for key, value in self.node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise usage(self.source, key, "a key must be a plain word", "", "")
            path = f"{self.path}.{key.value}" if self.path else key.value
            if key.value in seen:
                why = f"it is also in line {seen[key.value]}"
                raise usage(self.source, key, f"`{path}` is given twice", why, "remove one of them")
            seen[key.value] = key.start_mark.line + 1
            pairs.append((At(self.source, path, key), At(self.source, path, value)))
        return pairs

    def items(self, expected: str) -> list[At]:
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.wrong(expected)
        return [
            At(self.source, f"{self.path}[{index}]", item)
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
            fix = f"say the unit: {self.path}: {self.node.value}s" if digits(self.node) else ""
            raise self.wrong(units.DURATION_EXAMPLE, fix)
        if found > _DURATION_S_MAX or (found < 0.001 and not (zero and found == 0)):
            raise self.wrong("a duration from 1ms to 3650d")
        return found

    def name(self) -> str:
        value = self.text()
        if not NAME.fullmatch(value) or len(value) > JOB_NAME_CHARACTERS_MAX:
            raise self.wrong(
                f"a name of at most {JOB_NAME_CHARACTERS_MAX} letters, digits, dots, dashes and"
                " underscores that begins with a letter or digit"
            )
        return value


def compose(text: str, source: str) -> yaml.Node:
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


def usage(source: str, node: yaml.Node, what: str, why: str, fix: str) -> Usage:
    return Usage(f"{source}, line {node.start_mark.line + 1}: {what}", why=why, fix=fix)


def _unknown(source: str, node: yaml.Node, path: str, known: Mapping[str, object]) -> Usage:
    what = f"`{path}` is not a key of a job file"
    return usage(source, node, what, f"known here: {', '.join(known)}", nearest(node.value, known))


def nearest(word: str, known: Mapping[str, object] | list[str]) -> str:
    """The key that is meant: what other tools call so, else the most similar one."""
    plain = word.lower().replace("-", "_")
    meant = [key for key, others in SYNONYMS.items() if plain in others and key in known]
    near = meant or difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.5)
    return f"did you mean `{near[0]}`?" if near else ""


# Our keys, and what other tools call them. Of two that fit, the first that a place has is meant.
SYNONYMS: Final[Mapping[str, frozenset[str]]] = {
    key: frozenset(words.split())
    for key, words in {
        "name": "job job_name title id metadata",
        "command": "cmd script run entrypoint entry args argv program main start",
        "bundle": "code source src working_dir workdir dir folder files image container docker",
        "mode": "kind type strategy",
        "cpu": "cpus cores vcpu vcpus num_cpus",
        "memory": "mem ram",
        "gpu": "gpus cuda accelerator accelerators num_gpus",
        "disk": "storage ephemeral_storage scratch",
        "workers": "replicas instances nodes num_workers num_nodes processes parallelism nproc"
        " nproc_per_node world_size scale count",
        "min": "minimum least from",
        "max": "maximum most to limit",
        "resources": "cpu cpus cores memory mem ram gpu gpus disk storage limits requests"
        " accelerator accelerators",
        "queue": "partition pool project account namespace",
        "settings": "hyperparameters hyperparams hparams params parameters config arguments",
        "checkpoint": "checkpoints checkpointing save saving snapshot",
        "every": "interval period frequency",
        "restart": "retries retry max_retries restarts max_restarts restart_policy backoff",
        "deadline": "timeout time_limit max_time max_runtime walltime ttl until",
        "silence": "hang hang_timeout stall heartbeat",
        "env": "environment envs env_vars environment_variables variables vars",
        "secrets": "secret credentials tokens",
        "ports": "port expose",
        "ready": "readiness readiness_probe readinessprobe ready_when startup startup_probe",
        "live": "liveness liveness_probe livenessprobe health healthcheck health_check",
        "requirements": "dependencies packages pip conda",
        "on": "trigger triggers when schedule",
        "topic": "stream subject",
    }.items()
}


def digits(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.value.replace(".", "", 1).isdigit()


def words_of(at: At) -> tuple[str, ...]:
    """A command: a line as a shell would split it, or its words."""
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
