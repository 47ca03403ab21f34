"""The key `logs` of a job file: where the output of its workers goes beside the logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from holdfast.control.decide.spec import JobSpec
from holdfast.control.jobfile.tree import At, JobFileKey
from holdfast.wire.errors import Usage


def _flag(at: At) -> bool:
    value = at.scalar("true or false")
    if value not in ("true", "false"):
        raise at.wrong("true or false")
    return value == "true"


LOGS: Final[Mapping[str, JobFileKey]] = {
    "topic": JobFileKey(
        _flag,
        "`true` or `false`",
        "`false`",
        "Each line is also told on the topic `logs.<job>` ([topics](topics.md)).",
        "logs: {topic: true}",
        {"type": "boolean"},
    ),
}


def _logs(at: At) -> bool:
    return bool(at.fields(LOGS).get("topic", False))


KEYS: Final[Mapping[str, JobFileKey]] = {
    "logs": JobFileKey(
        _logs,
        "mapping",
        "files on the machines",
        "Where the output of its workers goes beside the files that `holdfast logs` reads.",
        "logs: {topic: true}",
        {},
        LOGS,
    ),
}


def check(found: dict[str, Any], wrong: Callable[[str, str, str], Usage]) -> None:
    """Give what was read its name in the spec."""
    del wrong  # nothing speaks against it
    if "logs" in found:
        found["log_topic"] = found.pop("logs")


def plain(spec: JobSpec) -> dict[str, Any]:
    return {"logs": {"topic": True}} if spec.log_topic else {}
