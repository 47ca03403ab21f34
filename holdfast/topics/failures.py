"""Kafka's errors as errors of our tree: what may be tried again, what somebody has to change."""

from __future__ import annotations

from typing import Any, Final

from holdfast.topics.kafka import confluent
from holdfast.wire.errors import (
    Cancelled,
    Conflict,
    Fenced,
    Full,
    HoldfastError,
    Missing,
    Refused,
    RetryError,
    TerminalError,
    TimedOut,
    TooLarge,
    Unavailable,
    Usage,
)

_RESTART: Final = "start this process again only if it, and not the other one, is to go on"
REACH: Final = "look whether the brokers run, and whether the address names them"

# Kafka's name of an error, without underscores that librdkafka's own have in front: what it is
# here, and what is to be done.
_KINDS: Final[tuple[tuple[type[HoldfastError], str, tuple[str, ...]], ...]] = (
    (
        Fenced,
        _RESTART,
        (
            "FENCED",
            "PRODUCER_FENCED",
            "INVALID_PRODUCER_EPOCH",
            "FENCED_INSTANCE_ID",
            "INVALID_PRODUCER_ID_MAPPING",
            "TRANSACTION_COORDINATOR_FENCED",
        ),
    ),
    (
        TimedOut,
        REACH,
        ("MSG_TIMED_OUT", "TIMED_OUT", "TIMED_OUT_QUEUE", "REQUEST_TIMED_OUT"),
    ),
    (
        Unavailable,
        REACH,
        (
            "TRANSPORT",
            "ALL_BROKERS_DOWN",
            "RESOLVE",
            "WAIT_COORD",
            "BROKER_NOT_AVAILABLE",
            "COORDINATOR_LOAD_IN_PROGRESS",
            "COORDINATOR_NOT_AVAILABLE",
            "LEADER_NOT_AVAILABLE",
            "NETWORK_EXCEPTION",
            "NOT_CONTROLLER",
            "NOT_COORDINATOR",
            "NOT_LEADER_FOR_PARTITION",
            "OFFSET_NOT_AVAILABLE",
            "REPLICA_NOT_AVAILABLE",
        ),
    ),
    (
        Unavailable,
        "wait until the topic's copies are back, or lower its min.insync.replicas",
        ("NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "ISR_INSUFF"),
    ),
    (Full, "free space on the broker's disk", ("KAFKA_STORAGE_ERROR",)),
    (Full, "send less at a time, or wait for what was sent", ("QUEUE_FULL",)),
    (Cancelled, "send it again", ("PURGE_QUEUE", "PURGE_INFLIGHT", "DESTROY")),
    (
        Missing,
        "`holdfast topics list` shows those that there are, `holdfast topics create` makes one",
        (
            "UNKNOWN_TOPIC_OR_PART",
            "UNKNOWN_TOPIC",
            "UNKNOWN_PARTITION",
            "UNKNOWN_TOPIC_ID",
            "INCONSISTENT_TOPIC_ID",
        ),
    ),
    (
        Missing,
        "`holdfast topics groups` shows those that there are",
        ("GROUP_ID_NOT_FOUND", "UNKNOWN_GROUP"),
    ),
    (
        Missing,
        "go to an offset that the topic still has: retention has removed older records",
        ("OFFSET_OUT_OF_RANGE", "AUTO_OFFSET_RESET", "NO_OFFSET"),
    ),
    (
        TooLarge,
        "send less in one record, or raise the topic's max.message.bytes",
        ("MSG_SIZE_TOO_LARGE", "INVALID_MSG_SIZE", "RECORD_LIST_TOO_LARGE"),
    ),
    (
        Conflict,
        "read again what is there now, and decide again",
        (
            "TOPIC_ALREADY_EXISTS",
            "ILLEGAL_GENERATION",
            "UNKNOWN_MEMBER_ID",
            "REBALANCE_IN_PROGRESS",
            "ASSIGNMENT_LOST",
            "STALE_MEMBER_EPOCH",
            "INCONSISTENT_GROUP_PROTOCOL",
            "CONFLICT",
        ),
    ),
    (Conflict, "end the group's members first", ("NON_EMPTY_GROUP", "GROUP_SUBSCRIBED_TO_TOPIC")),
    (
        Conflict,
        "handle fewer records between two polls, or faster",
        ("MAX_POLL_EXCEEDED",),
    ),
    (
        RetryError,
        "try again: what stood in the way ends by itself",
        ("CONCURRENT_TRANSACTIONS", "UNSTABLE_OFFSET_COMMIT", "TRANSACTION_ABORTABLE"),
    ),
    (
        Refused,
        "ask whoever runs the cluster for this right (`kafka-acls`)",
        (
            "TOPIC_AUTHORIZATION_FAILED",
            "GROUP_AUTHORIZATION_FAILED",
            "CLUSTER_AUTHORIZATION_FAILED",
            "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        ),
    ),
    (
        Refused,
        "look at user, password-file, mechanism and ca in the address",
        (
            "AUTHENTICATION",
            "SASL_AUTHENTICATION_FAILED",
            "UNSUPPORTED_SASL_MECHANISM",
            "ILLEGAL_SASL_STATE",
            "SSL",
        ),
    ),
    (
        Usage,
        "change what was asked for",
        (
            "INVALID_ARG",
            "INVALID_COMMIT_OFFSET_SIZE",
            "INVALID_CONFIG",
            "INVALID_GROUP_ID",
            "INVALID_PARTITIONS",
            "INVALID_RECORD",
            "INVALID_REPLICATION_FACTOR",
            "INVALID_REQUEST",
            "INVALID_SESSION_TIMEOUT",
            "INVALID_TIMESTAMP",
            "INVALID_TRANSACTION_TIMEOUT",
            "OFFSET_METADATA_TOO_LARGE",
            "POLICY_VIOLATION",
            "TOPIC_EXCEPTION",
        ),
    ),
)
_FATAL_CAUSES: Final = (
    "FENCED_INSTANCE_ID",
    "INVALID_PRODUCER_EPOCH",
    "PRODUCER_FENCED",
    "_FENCED",
    "INVALID_PRODUCER_ID_MAPPING",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "OUT_OF_ORDER_SEQUENCE_NUMBER",
)
_BY_NAME: Final = {name: (kind, fix) for kind, fix, names in _KINDS for name in names}


def translate(error: Any, what: str) -> HoldfastError:
    """The error of ours for a `KafkaError`, or for an exception that holds one."""
    if isinstance(error, BaseException):
        inner = error.args[0] if error.args else None
        if not hasattr(inner, "code"):
            return Usage(what, why=str(error), fix="change what was asked for")
        translated = translate(inner, what)
        translated.__cause__ = error
        return translated
    name = _name_of(error)
    kind, fix = _BY_NAME.get(name, (RetryError if error.retriable() else TerminalError, ""))
    return kind(what, why=f"{error.str()} ({name})", fix=fix)


def _name_of(error: Any) -> str:
    """Kafka's name of it. Of a fatal error librdkafka gives the cause only in words."""
    name = str(error.name()).lstrip("_")
    if name != "FATAL":
        return name
    known = confluent().KafkaError
    for cause in _FATAL_CAUSES:
        if (code := getattr(known, cause, None)) is not None and known(code).str() in error.str():
            return cause.lstrip("_")
    return name


def is_named(error: Any, *names: str) -> bool:
    """Whether a `KafkaError`, or an exception that holds one, has one of these names."""
    inner = error.args[0] if isinstance(error, BaseException) and error.args else error
    return hasattr(inner, "name") and str(inner.name()).lstrip("_") in names
