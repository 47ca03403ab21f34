"""The configs of a topic: Kafka's names, what each may be, and what it is if nobody says."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final, NamedTuple

from holdfast.topics.broker.protocol.codes import ErrorCode, KafkaError

# Kafka's numbers for the type of a config's value, and for where it came from.
BOOLEAN, STRING, INT, _SHORT, LONG, _DOUBLE, LIST = range(1, 8)
SOURCE_TOPIC, SOURCE_BROKER, SOURCE_DEFAULT = 1, 4, 5

_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1

COMPACT: Final = "compact"
DELETE: Final = "delete"


class TopicConfig(NamedTuple):
    """One config: its value if nobody says, its type, and its bounds or choices."""

    default: str
    kind: int
    least: int = 0
    most: int = _LONG_MAX
    choices: tuple[str, ...] = ()


TOPIC_CONFIGS: Final[dict[str, TopicConfig]] = {
    "cleanup.policy": TopicConfig(DELETE, LIST, choices=(COMPACT, DELETE)),
    "compression.type": TopicConfig("producer", STRING, choices=("producer",)),
    "delete.retention.ms": TopicConfig("86400000", LONG),
    "file.delete.delay.ms": TopicConfig("60000", LONG),
    "flush.messages": TopicConfig(str(_LONG_MAX), LONG, 1),
    "flush.ms": TopicConfig(str(_LONG_MAX), LONG),
    "index.interval.bytes": TopicConfig("4096", INT, 0, _INT_MAX),
    "max.compaction.lag.ms": TopicConfig(str(_LONG_MAX), LONG, 1),
    "max.message.bytes": TopicConfig("1048588", INT, 0, _INT_MAX),
    "message.timestamp.after.max.ms": TopicConfig("3600000", LONG),
    "message.timestamp.before.max.ms": TopicConfig(str(_LONG_MAX), LONG),
    "message.timestamp.type": TopicConfig(
        "CreateTime", STRING, choices=("CreateTime", "LogAppendTime")
    ),
    "min.cleanable.dirty.ratio": TopicConfig("0.5", _DOUBLE, 0, 1),
    "min.compaction.lag.ms": TopicConfig("0", LONG),
    "min.insync.replicas": TopicConfig("1", INT, 1, _INT_MAX),
    "preallocate": TopicConfig("false", BOOLEAN),
    "retention.bytes": TopicConfig("-1", LONG, -1),
    "retention.ms": TopicConfig("604800000", LONG, -1),
    "segment.bytes": TopicConfig("1073741824", INT, 1024 * 1024, _INT_MAX),
    "segment.index.bytes": TopicConfig("10485760", INT, 4, _INT_MAX),
    "segment.jitter.ms": TopicConfig("0", LONG),
    "segment.ms": TopicConfig("604800000", LONG, 1),
    "unclean.leader.election.enable": TopicConfig("false", BOOLEAN),
}


def check(name: str, value: str | None) -> str:
    """The value as it is kept; `INVALID_CONFIG` if the topic cannot have it."""
    config = TOPIC_CONFIGS.get(name)
    if config is None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
    if value is None:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"Null value not supported for topic config: {name}"
        )
    value = value.strip()
    if config.kind == LIST:
        chosen = [part.strip() for part in value.split(",") if part.strip()]
        if not chosen or not set(chosen) <= set(config.choices):
            raise _invalid(name, value, f"choose from {', '.join(config.choices)}")
        return ",".join(dict.fromkeys(chosen))
    if config.choices and value not in config.choices:
        raise _invalid(name, value, f"choose from {', '.join(config.choices)}")
    if config.kind == BOOLEAN:
        if value.lower() not in ("true", "false"):
            raise _invalid(name, value, "Expected value to be either true or false")
        return value.lower()
    if config.kind in (INT, LONG, _DOUBLE):
        try:
            number = float(value) if config.kind == _DOUBLE else int(value)
        except ValueError:
            raise _invalid(name, value, "Not a number") from None
        if not config.least <= number <= config.most:
            raise _invalid(name, value, f"Value must be from {config.least} to {config.most}")
    return value


def _invalid(name: str, value: str, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_CONFIG, f"Invalid value {value} for configuration {name}: {why}"
    )


def value_of(own: Mapping[str, str], name: str) -> str:
    """What a topic with these configs of its own has."""
    return own.get(name) or TOPIC_CONFIGS[name].default


class TopicSettings(NamedTuple):
    """A topic's configs as the log and the checks use them."""

    bytes_max: int
    append_time: bool
    compacts: bool
    deletes: bool
    retention_ms: int
    retention_bytes: int
    segment_bytes: int
    segment_ms: int
    insync_min: int
    tombstones_ms: int
    compaction_lag_ms: int
    dirty_ratio: float
    before_max_ms: int
    after_max_ms: int


def settings(own: Mapping[str, str]) -> TopicSettings:
    """What these configs of a topic mean."""

    def number(name: str) -> int:
        return int(value_of(own, name))

    policy = value_of(own, "cleanup.policy").split(",")
    return TopicSettings(
        bytes_max=number("max.message.bytes"),
        append_time=value_of(own, "message.timestamp.type") == "LogAppendTime",
        compacts=COMPACT in policy,
        deletes=DELETE in policy,
        retention_ms=number("retention.ms"),
        retention_bytes=number("retention.bytes"),
        segment_bytes=number("segment.bytes"),
        segment_ms=number("segment.ms"),
        insync_min=number("min.insync.replicas"),
        tombstones_ms=number("delete.retention.ms"),
        compaction_lag_ms=number("min.compaction.lag.ms"),
        dirty_ratio=float(value_of(own, "min.cleanable.dirty.ratio")),
        before_max_ms=number("message.timestamp.before.max.ms"),
        after_max_ms=number("message.timestamp.after.max.ms"),
    )


def intern(own: Mapping[str, str]) -> dict[str, str]:
    """The same configs; names that ten thousand topics have are in memory once."""
    return {sys.intern(name): value for name, value in own.items()}
