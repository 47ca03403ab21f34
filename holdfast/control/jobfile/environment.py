"""The keys of a job file that make the environment of its workers: `env`, with values, `secrets`,
with the names of values that the cluster keeps (`secret_store`), and `requirements`, with what is
installed for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

import yaml

from holdfast.control.decide.spec import JobSpec
from holdfast.control.jobfile.tree import NAME, VALUE_SCHEMA, At, JobFileKey
from holdfast.wire import worker_messages
from holdfast.wire.errors import Usage
from holdfast.wire.limits import JOB_NAME_CHARACTERS_MAX

# Each start of a worker carries its environment, and a job's node holds it.
JOB_ENVIRONMENT_MAX: Final = 64
JOB_ENVIRONMENT_BYTES_MAX: Final = 16 * 1024
# The same of what it wants installed: a lock with hashes is a file in the bundle.
JOB_REQUIREMENTS_MAX: Final = 500
JOB_REQUIREMENT_CHARACTERS_MAX: Final = 1_000

_FILE: Final = "-r "  # before the name of a file of requirements, as pip reads it
_EDITABLE: Final = re.compile(r"\s*(?:-e|--editable)\b")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_OURS: Final = "HOLDFAST_"
# Those of ours that a job may set.
_OPEN: Final = (worker_messages.EXCHANGE_VARIABLE, worker_messages.CHECK_VARIABLE)
# What an agent decides by the room that a worker got; a value here would be passed over.
_AGENTS: Final = ("CUDA_VISIBLE_DEVICES", "TMPDIR")
_VARIABLE_SCHEMA: Final = {
    "pattern": f"^(?:{'|'.join(_OPEN)}|(?!{_OURS}){_VARIABLE.pattern})$",
    "not": {"enum": list(_AGENTS)},
}


def env(at: At) -> dict[str, str]:
    """`{NAME: value}`."""
    found = {_variable(key): _value(value) for key, value in at.pairs()}
    texts = (text for pair in found.items() for text in pair)
    size = sum(len(text.encode(errors="surrogatepass")) for text in texts)
    if len(found) > JOB_ENVIRONMENT_MAX or size > JOB_ENVIRONMENT_BYTES_MAX:
        raise at.wrong(
            f"at most {JOB_ENVIRONMENT_MAX} variables with {JOB_ENVIRONMENT_BYTES_MAX} bytes",
            "put data into the bundle, and name its file here",
        )
    return found


def secrets(at: At) -> dict[str, str]:
    """`{NAME: name-of-secret}`."""
    found = {_variable(key): value.name() for key, value in at.pairs()}
    if len(found) > JOB_ENVIRONMENT_MAX:
        raise at.wrong(f"at most {JOB_ENVIRONMENT_MAX} variables")
    return found


def requirements(at: At) -> tuple[str, ...]:
    """`requirements.txt`, or `[numpy==2.1, ./wheels/own.whl]`."""
    expected = "the name of a file in the bundle, or a list of requirements as pip reads them"
    if isinstance(at.node, yaml.ScalarNode):
        return (_FILE + _in_bundle(at, at.scalar(expected)),)
    items = at.items(expected)
    if not 1 <= len(items) <= JOB_REQUIREMENTS_MAX:
        raise at.wrong(
            f"a list of 1 to {JOB_REQUIREMENTS_MAX} lines",
            "put them into a file of the bundle: requirements: requirements.txt",
        )
    return tuple(map(_requirement, items))


def _requirement(at: At) -> str:
    line = at.scalar("a requirement, such as numpy==2.1").strip()
    if not line or "\n" in line or len(line) > JOB_REQUIREMENT_CHARACTERS_MAX:
        raise at.wrong("one line, such as numpy==2.1")
    if _EDITABLE.match(line):
        raise at.wrong(
            "a folder without -e: its environment is shared, and outlives the job's code",
            f"- {line.split()[-1]}",
        )
    return line


def _in_bundle(at: At, name: str) -> str:
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or name != name.strip():
        raise at.wrong(
            "the name of a file in the bundle, such as requirements.txt; or a list",
            f"requirements: [{name}]" if re.search(r"[=<>~]", name) else "",
        )
    return name


def requirement_files(spec: JobSpec) -> list[str]:
    """The files that it names, which must be in its bundle."""
    return [
        line.removeprefix(_FILE).strip() for line in spec.requirements if line.startswith(_FILE)
    ]


def _variable(at: At) -> str:
    name = str(at.node.value)
    if not _VARIABLE.fullmatch(name):
        raise at.wrong("named as an environment variable: letters, digits and underscores")
    if (name.startswith(_OURS) and name not in _OPEN) or name in _AGENTS:
        raise at.wrong("another variable: this one is set by Holdfast")
    return name


def _value(at: At) -> str:
    text = at.scalar("a single value")
    if "\0" in text:
        raise at.wrong("text that a process can be given")
    return text


def check(found: Mapping[str, Any], wrong: Callable[[str, str, str], Usage]) -> None:
    """That no variable has two values."""
    for name in sorted(found.get("env", {}).keys() & found.get("secrets", {}).keys()):
        raise wrong(f"{name} is in `env` and in `secrets`", "", "remove one of them")


def plain(spec: JobSpec) -> dict[str, Any]:
    """These keys, as `env` and `secrets` read them."""
    both = {"env": dict(spec.env), "secrets": dict(spec.secrets)}
    plain: dict[str, Any] = {key: held for key, held in both.items() if held}
    if spec.requirements:
        files = requirement_files(spec)
        alone = len(spec.requirements) == 1 and files and _FILE + files[0] == spec.requirements[0]
        plain["requirements"] = files[0] if alone else list(spec.requirements)
    return plain


KEYS: Final[Mapping[str, JobFileKey]] = {
    "env": JobFileKey(
        env,
        "mapping of single values",
        "none",
        "Environment variables of the workers. Values are shown by `holdfast jobs JOB`, so what "
        "nobody should read belongs into `secrets`. `HOLDFAST_…` is ours, but for "
        "`HOLDFAST_EXCHANGE: tcp` (workers share no memory) and `HOLDFAST_CHECK_STEPS: 1000` (each "
        "worker's arithmetic is checked by another once in so many steps).",
        'env: {OMP_NUM_THREADS: 2, STAGE: "test"}',
        {
            "type": "object",
            "propertyNames": _VARIABLE_SCHEMA,
            "additionalProperties": VALUE_SCHEMA,
            "maxProperties": JOB_ENVIRONMENT_MAX,
        },
    ),
    "secrets": JobFileKey(
        secrets,
        "mapping of names",
        "none",
        "Environment variables with values that the cluster keeps: the variable, and the name of "
        "the secret. A job waits until there is one of that name: `holdfast secret set NAME`.",
        "secrets: {API_TOKEN: hub-token}",
        {
            "type": "object",
            "propertyNames": _VARIABLE_SCHEMA,
            "additionalProperties": {
                "type": "string",
                "pattern": f"^{NAME.pattern}$",
                "maxLength": JOB_NAME_CHARACTERS_MAX,
            },
            "maxProperties": JOB_ENVIRONMENT_MAX,
        },
    ),
    "requirements": JobFileKey(
        requirements,
        "text, or list of lines",
        "none: what the agent's own Python has",
        "What pip installs for the workers: a file of the bundle, or its lines. Each machine makes "
        "one environment for all workers with the same ([programs](programs.md#requirements)).",
        "requirements: [numpy==2.1, einops]",
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {
                    "type": "array",
                    "items": {"type": "string", "maxLength": JOB_REQUIREMENT_CHARACTERS_MAX},
                    "minItems": 1,
                    "maxItems": JOB_REQUIREMENTS_MAX,
                },
            ]
        },
    ),
}
