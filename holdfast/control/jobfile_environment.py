"""The keys of a job file that make the environment of its workers: `env`, with values, and
`secrets`, with the names of values that the cluster keeps (`secret_store`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from holdfast.control.jobfile_tree import NAME, VALUE_SCHEMA, At, Key
from holdfast.control.spec import JobSpec
from holdfast.wire.errors import Usage
from holdfast.wire.limits import (
    JOB_ENVIRONMENT_BYTES_MAX,
    JOB_ENVIRONMENT_MAX,
    JOB_NAME_CHARACTERS_MAX,
)

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_OURS: Final = "HOLDFAST_"
# What an agent decides by the room that a worker got; a value here would be passed over.
_AGENTS: Final = ("CUDA_VISIBLE_DEVICES", "TMPDIR")
_VARIABLE_SCHEMA: Final = {
    "pattern": f"^(?!{_OURS}){_VARIABLE.pattern}$",
    "not": {"enum": list(_AGENTS)},
}


def env(at: At) -> dict[str, str]:
    """`{NAME: value}`."""
    found = {_variable(key): _value(value) for key, value in at.pairs()}
    size = sum(len(name.encode()) + len(text.encode()) for name, text in found.items())
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


def _variable(at: At) -> str:
    name = str(at.node.value)
    if not _VARIABLE.fullmatch(name):
        raise at.wrong("named as an environment variable: letters, digits and underscores")
    if name.startswith(_OURS) or name in _AGENTS:
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
    return {key: held for key, held in both.items() if held}


KEYS: Final[Mapping[str, Key]] = {
    "env": Key(
        env,
        "mapping of single values",
        "none",
        "Environment variables of the workers. Values are shown by `holdfast jobs JOB`, so what "
        "nobody should read belongs into `secrets`. `HOLDFAST_…` is ours.",
        'env: {OMP_NUM_THREADS: 2, STAGE: "test"}',
        {
            "type": "object",
            "propertyNames": _VARIABLE_SCHEMA,
            "additionalProperties": VALUE_SCHEMA,
            "maxProperties": JOB_ENVIRONMENT_MAX,
        },
    ),
    "secrets": Key(
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
}
