"""Topics are made, deleted, and given more partitions."""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from holdfast.topics.broker.core import commands, configs
from holdfast.topics.broker.core.acls import CLUSTER_NAME, Operation, ResourceKind
from holdfast.topics.broker.core.commands import AnyCommand
from holdfast.topics.broker.core.state import CommandOutcome
from holdfast.topics.broker.protocol.admin import (
    CreatedConfig,
    CreatedPartitions,
    CreatedTopic,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletedTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    MorePartitions,
    TopicCreation,
)
from holdfast.topics.broker.protocol.codec import NO_UUID
from holdfast.topics.broker.protocol.codes import ErrorCode, KafkaError
from holdfast.topics.broker.request import ClientRequest

if TYPE_CHECKING:
    from holdfast.topics.broker.broker import Broker

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_ID_BYTES: Final = 16
_NODE_ID: Final = 1
_DASH: Final = 62  # in the alphabet of base64 for addresses


def check_name(broker: Broker, name: str) -> None:
    """Refuse a name that Kafka refuses."""
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise KafkaError(
            ErrorCode.INVALID_TOPIC,
            f"'{name}' is no name of a topic: letters, digits, '.', '_' and '-', up to 249 of them",
        )
    alike = name.replace(".", "_")
    for other in broker.state.topics if alike != name or "_" in name else ():
        if other != name and other.replace(".", "_") == alike:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC, f"Topic '{name}' collides with existing topic: {other}"
            )


def new_topic(
    broker: Broker, name: str, partitions: int, own: Mapping[str, str]
) -> commands.CreateTopic:
    """The command that makes a topic, if there may be one."""
    check_name(broker, name)
    check_count(broker, partitions)
    return commands.CreateTopic(name, _new_id(), partitions, dict(own))


def _new_id() -> bytes:
    """A random id whose text, in base64, does not look like an option of a command."""
    while True:
        made = secrets.token_bytes(_ID_BYTES)
        if made[0] >> 2 != _DASH:
            return made


def check_count(broker: Broker, more: int) -> None:
    if more <= 0:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value.",
        )
    if broker.state.partitions_count + more > broker.settings.partitions_max:
        most = broker.settings.partitions_max
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"this broker has at most {most} partitions")


# --- CreateTopics ---------------------------------------------------------------------------------


def create_topics(broker: Broker, request: ClientRequest) -> None:
    asked = request.body
    assert isinstance(asked, CreateTopicsRequest)
    names = Counter(one.name for one in asked.topics)
    answers: list[CreatedTopic] = []
    accepted: list[tuple[CreatedTopic, commands.CreateTopic]] = []
    for one in asked.topics:
        answer = CreatedTopic(name=one.name)
        try:
            if names[one.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            command = _wanted(broker, request, one)
            _describe(answer, command)
            if not asked.validate_only:
                accepted.append((answer, command))
        except KafkaError as error:
            answer.error_code, answer.error_message = error.code, error.text or error.code.name
        answers.append(answer)

    def done(outcomes: list[CommandOutcome]) -> None:
        for (answer, command), outcome in zip(accepted, outcomes, strict=True):
            answer.error_code = outcome.error
            if outcome.error:
                answer.error_message = outcome.text
            else:
                answer.topic_id = command.topic_id
        request.answer(CreateTopicsResponse(topics=answers))

    broker.write([command for _, command in accepted], done)


def _wanted(broker: Broker, request: ClientRequest, one: TopicCreation) -> commands.CreateTopic:
    check_name(broker, one.name)
    if not broker.may(request, Operation.CREATE, ResourceKind.TOPIC, one.name) and not broker.may(
        request, Operation.CREATE, ResourceKind.CLUSTER, CLUSTER_NAME
    ):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.")
    if one.name in broker.state.topics:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{one.name}' already exists.")
    count = one.num_partitions if one.num_partitions != -1 else broker.settings.default_partitions
    if one.assignments:
        if one.num_partitions != -1 or one.replication_factor != -1:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "A manual assignment leaves the numbers out."
            )
        check_assignments([held.broker_ids for held in one.assignments])
        if sorted(held.partition for held in one.assignments) != list(range(len(one.assignments))):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions are numbered from 0 without a gap"
            )
        count = len(one.assignments)
    elif one.replication_factor not in (-1, 1):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {one.replication_factor} time(s): there is one"
            " broker.",
        )
    own: dict[str, str] = {}
    for config in one.configs:
        if config.value is not None:
            own[config.name] = configs.check(config.name, config.value)
        else:
            configs.check(config.name, None)
    return new_topic(broker, one.name, count, own)


def check_assignments(assignments: list[list[int]]) -> None:
    """Every partition lies here, and nowhere else."""
    if any(one != [_NODE_ID] for one in assignments):
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"there is one broker: {_NODE_ID}")


def _describe(answer: CreatedTopic, command: commands.CreateTopic) -> None:
    answer.num_partitions = command.partitions
    answer.replication_factor = 1
    answer.configs = [
        CreatedConfig(
            name=name,
            value=configs.value_of(command.configs, name),
            config_source=configs.SOURCE_TOPIC
            if name in command.configs
            else configs.SOURCE_DEFAULT,
        )
        for name in configs.TOPIC_CONFIGS
    ]


# --- DeleteTopics ---------------------------------------------------------------------------------


def delete_topics(broker: Broker, request: ClientRequest) -> None:
    asked = request.body
    assert isinstance(asked, DeleteTopicsRequest)
    wanted: list[tuple[str | None, bytes]] = [(name, NO_UUID) for name in asked.topic_names]
    wanted += [(one.name, one.topic_id) for one in asked.topics]
    answers: list[DeletedTopic] = []
    accepted: list[tuple[DeletedTopic, AnyCommand]] = []
    for name, topic_id in wanted:
        answer = DeletedTopic(name=name, topic_id=topic_id)
        try:
            accepted.append((answer, _deletion(broker, request, answer)))
        except KafkaError as error:
            answer.error_code, answer.error_message = error.code, error.text or error.code.name
        answers.append(answer)

    def done(outcomes: list[CommandOutcome]) -> None:
        for (answer, _), outcome in zip(accepted, outcomes, strict=True):
            answer.error_code = outcome.error
        request.answer(DeleteTopicsResponse(responses=answers))

    broker.write([command for _, command in accepted], done)


def _deletion(broker: Broker, request: ClientRequest, answer: DeletedTopic) -> commands.DeleteTopic:
    by_id = answer.topic_id != NO_UUID
    if by_id and answer.name is not None:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id."
        )
    state = broker.state
    topic = state.by_id.get(answer.topic_id) if by_id else state.topics.get(answer.name or "")
    name = topic.name if topic is not None else answer.name or ""
    if not broker.may(request, Operation.DELETE, ResourceKind.TOPIC, name):
        if topic is None and by_id:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if topic is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
    answer.name, answer.topic_id = topic.name, topic.topic_id
    return commands.DeleteTopic(topic.topic_id)


# --- CreatePartitions -----------------------------------------------------------------------------


def create_partitions(broker: Broker, request: ClientRequest) -> None:
    asked = request.body
    assert isinstance(asked, CreatePartitionsRequest)
    answers: list[CreatedPartitions] = []
    accepted: list[tuple[CreatedPartitions, AnyCommand]] = []
    names = Counter(one.name for one in asked.topics)
    for one in asked.topics:
        answer = CreatedPartitions(name=one.name)
        try:
            if names[one.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            command = _growth(broker, request, one)
            if not asked.validate_only:
                accepted.append((answer, command))
        except KafkaError as error:
            answer.error_code, answer.error_message = error.code, error.text or error.code.name
        answers.append(answer)

    def done(outcomes: list[CommandOutcome]) -> None:
        for (answer, _), outcome in zip(accepted, outcomes, strict=True):
            answer.error_code, answer.error_message = outcome.error, outcome.text or None
        request.answer(CreatePartitionsResponse(results=answers))

    broker.write([command for _, command in accepted], done)


def _growth(broker: Broker, request: ClientRequest, one: MorePartitions) -> commands.AddPartitions:
    if not broker.may(request, Operation.ALTER, ResourceKind.TOPIC, one.name):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    topic = broker.state.topics.get(one.name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    held = len(topic.partitions)
    if one.count <= held:
        how = "already has" if one.count == held else "currently has"
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic {how} {held} partitions, which is not fewer than the requested {one.count}.",
        )
    check_count(broker, one.count - held)
    if one.assignments is not None:
        if len(one.assignments) != one.count - held:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{one.count - held} new partitions need as many assignments",
            )
        check_assignments([each.broker_ids for each in one.assignments])
    return commands.AddPartitions(topic.topic_id, one.count)
