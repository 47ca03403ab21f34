"""The key `on` of a job file: a job that is started for the records of a topic."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import yaml

from holdfast.control.decide import units
from holdfast.control.decide.spec import JobSpec, Mode, Trigger, TriggerStart
from holdfast.control.decide.triggers import TRIGGER_NAME_CHARACTERS_MAX
from holdfast.control.jobfile.tree import At, JobFileKey
from holdfast.wire.errors import Usage
from holdfast.wire.record_filter import FILTER_CHARACTERS_MAX, parse_filter

# What Kafka takes for the name of a topic.
_TOPIC: Final = re.compile(r"(?!\.\.?$)[A-Za-z0-9._-]{1,249}", re.ASCII)
_RECORDS: Final = re.compile(r"([0-9]{1,12}) records?", re.ASCII)
_EVERY: Final = "a number of records or a duration, such as `10000 records` or 5m"
_AT_ONCE_MAX: Final = 1_000
_EVERY_SCHEMA: Final = {
    "type": "string",
    "pattern": f"^{_RECORDS.pattern}$|{units.DURATION_PATTERN}",
}


def _topic(at: At) -> str:
    name = at.text()
    if not _TOPIC.fullmatch(name):
        raise at.wrong(
            "the name of a topic: at most 249 letters, digits, dots, dashes, underscores"
        )
    return name


def _every(at: At) -> tuple[int | None, float | None]:
    if isinstance(at.node, yaml.SequenceNode):
        both = [_one_every(each) for each in at.items(_EVERY)]
        counts = [count for count, _ in both if count is not None]
        times = [time_s for _, time_s in both if time_s is not None]
        if len(counts) != 1 or len(times) != 1:
            raise at.wrong("one number of records and one duration", "every: [10000 records, 5m]")
        return counts[0], times[0]
    return _one_every(at)


def _one_every(at: At) -> tuple[int | None, float | None]:
    text = at.scalar(_EVERY)
    counted = _RECORDS.fullmatch(text)
    if counted:
        if not int(counted[1]):
            raise at.wrong("at least 1 record")
        return int(counted[1]), None
    if units.seconds_of(text) is None:
        fix = f"say of what: every: {text} records" if text.isdecimal() else ""
        raise at.wrong(_EVERY, fix)
    return None, at.seconds()


def _filter(at: At) -> str:
    text = at.scalar("a condition, such as value.amount > 100").strip()
    try:
        parse_filter(text)
    except Usage as error:
        raise at.wrong(f"a condition on a record: {error.why}", error.fix) from error
    return text


def _start(at: At) -> TriggerStart:
    known = [each.value for each in TriggerStart]
    value = at.scalar(f"one of {', '.join(known)}")
    if value not in known:
        raise at.wrong(f"one of {', '.join(known)}")
    return TriggerStart(value)


def _on(at: At) -> Trigger:
    found = at.fields(ON)
    for key in ("topic", "every"):
        if key not in found:
            raise at.wrong("a mapping with `topic` and `every`", f"{key}: ...")
    records, every_s = found.pop("every")
    return Trigger(every_records=records, every_s=every_s, **found)


def check(found: Mapping[str, Any], wrong: Callable[[str, str, str], Usage]) -> None:
    """That a job with `on` can be one that is started again and again."""
    if "on" not in found:
        return
    if found.get("mode") is Mode.SERVE:
        why = "a started job ends, and one that serves does not"
        raise wrong("`on` and `mode: serve` cannot be together", why, "holdfast subscribe --help")
    if len(found["name"]) > TRIGGER_NAME_CHARACTERS_MAX:
        why = "its jobs are called by it and a number"
        fix = f"a name of at most {TRIGGER_NAME_CHARACTERS_MAX} characters"
        raise wrong(f"the name {found['name']} is too long for a trigger", why, fix)


def plain(spec: JobSpec) -> dict[str, Any]:
    """This key, as `_on` reads it."""
    on = spec.on
    if on is None:
        return {}
    every = [] if on.every_records is None else [f"{on.every_records} records"]
    every += [] if on.every_s is None else [units.duration_of(on.every_s)]
    found: dict[str, Any] = {"topic": on.topic, "every": every if len(every) > 1 else every[0]}
    if on.filter:
        found["filter"] = on.filter
    return {"on": found | {"start": on.start.value, "at_once": on.at_once}}


ON: Final[Mapping[str, JobFileKey]] = {
    "topic": JobFileKey(
        _topic,
        "text",
        "must be there",
        "Whose records.",
        "on: {topic: orders, every: 5m}",
        {"type": "string", "pattern": f"^{_TOPIC.pattern}$"},
    ),
    "every": JobFileKey(
        _every,
        "number of records, duration, or list of both",
        "must be there",
        "A job for each so many records, or for what has come so long after the last one was "
        "started; with both, whichever comes first.",
        "on: {topic: orders, every: [10000 records, 5m]}",
        {
            "anyOf": [
                _EVERY_SCHEMA,
                {"type": "array", "items": _EVERY_SCHEMA, "minItems": 2, "maxItems": 2},
            ]
        },
    ),
    "filter": JobFileKey(
        _filter,
        "text",
        "none",
        "A condition on a record; a job reads only those that meet it. All of them are counted "
        "([filters](triggers.md#filters)).",
        "on: {topic: orders, every: 5m, filter: value.amount > 100}",
        {"type": "string", "minLength": 1, "maxLength": FILTER_CHARACTERS_MAX},
    ),
    "start": JobFileKey(
        _start,
        "one of `earliest`, `latest`",
        "`earliest`",
        "Where it begins in a topic that has records already: with them, or with what comes later.",
        "on: {topic: orders, every: 5m, start: latest}",
        {"enum": [each.value for each in TriggerStart]},
    ),
    "at_once": JobFileKey(
        lambda at: at.whole(1, _AT_ONCE_MAX),
        "whole number",
        "1",
        "So many of its jobs may live at a time; meanwhile records wait.",
        "on: {topic: orders, every: 5m, at_once: 4}",
        {"type": "integer", "minimum": 1, "maximum": _AT_ONCE_MAX},
    ),
}

KEYS: Final[Mapping[str, JobFileKey]] = {
    "on": JobFileKey(
        _on,
        "mapping",
        "none: it is started once, now",
        "It is started again and again, for the records of a topic: each record is given to "
        "exactly one of its jobs ([triggers](triggers.md)).",
        "on: {topic: orders, every: 10000 records}",
        {},
        ON,
    ),
}
