"""The configs of topics are shown and changed; those of the broker are shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from holdfast.topics.broker.core import commands, configs
from holdfast.topics.broker.core.acls import CLUSTER_NAME, Operation, ResourceKind
from holdfast.topics.broker.core.commands import AnyCommand
from holdfast.topics.broker.core.state import CommandOutcome, Topic
from holdfast.topics.broker.protocol.admin import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    AlteredResource,
    ConfigResource,
    ConfigSynonym,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribedConfig,
    DescribedResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    IncrementalConfig,
)
from holdfast.topics.broker.protocol.codes import ErrorCode, KafkaError
from holdfast.topics.broker.request import ClientRequest

if TYPE_CHECKING:
    from holdfast.topics.broker.broker import Broker

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
_NODE: Final = "1"


def _broker_configs(broker: Broker) -> dict[str, str]:
    """What tools look for in a broker's configs."""
    host, port = broker.settings.address
    return {
        "advertised.listeners": f"PLAINTEXT://{host}:{port}",
        "auto.create.topics.enable": str(broker.settings.auto_create).lower(),
        "default.replication.factor": "1",
        "group.initial.rebalance.delay.ms": str(broker.settings.group_delay_ms),
        "log.dirs": str(broker.store.folder),
        "min.insync.replicas": "1",
        "node.id": _NODE,
        "num.partitions": str(broker.settings.default_partitions),
    }


# --- DescribeConfigs ------------------------------------------------------------------------------


def describe_configs(broker: Broker, request: ClientRequest) -> None:
    asked = request.body
    assert isinstance(asked, DescribeConfigsRequest)
    results = []
    for one in asked.resources:
        result = DescribedResource(
            resource_type=one.resource_type, resource_name=one.resource_name, configs=[]
        )
        try:
            result.configs = _described(broker, request, one, asked.include_synonyms)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.text or error.code.name
        results.append(result)
    request.answer(DescribeConfigsResponse(results=results))


def _described(
    broker: Broker, request: ClientRequest, one: ConfigResource, synonyms: bool
) -> list[DescribedConfig]:
    keys = None if one.configuration_keys is None else set(one.configuration_keys)
    if one.resource_type == BROKER:
        if not broker.may(request, Operation.DESCRIBE_CONFIGS, ResourceKind.CLUSTER, CLUSTER_NAME):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if one.resource_name not in ("", _NODE):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"this is broker {_NODE}")
        held = _broker_configs(broker) if one.resource_name else {}
        return [
            DescribedConfig(
                name=name,
                value=value,
                read_only=True,
                config_source=configs.SOURCE_BROKER,
                config_type=configs.STRING,
            )
            for name, value in held.items()
            if keys is None or name in keys
        ]
    topic = _topic(broker, request, one.resource_type, one.resource_name, reads=True)
    return [
        _topic_config(topic, name, synonyms)
        for name in configs.TOPIC_CONFIGS
        if keys is None or name in keys
    ]


def _topic_config(topic: Topic, name: str, synonyms: bool) -> DescribedConfig:
    known, own = configs.TOPIC_CONFIGS[name], topic.configs.get(name)
    source = configs.SOURCE_DEFAULT if own is None else configs.SOURCE_TOPIC
    shown = []
    if synonyms:
        if own is not None:
            shown.append(ConfigSynonym(name=name, value=own, source=configs.SOURCE_TOPIC))
        default = ConfigSynonym(name=name, value=known.default, source=configs.SOURCE_DEFAULT)
        shown.append(default)
    return DescribedConfig(
        name=name,
        value=known.default if own is None else own,
        read_only=False,
        is_default=own is None,
        config_source=source,
        synonyms=shown,
        config_type=known.kind,
    )


def _topic(broker: Broker, request: ClientRequest, kind: int, name: str, *, reads: bool) -> Topic:
    if kind != TOPIC:
        what = "described" if reads else "changed"
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"configs of type {kind} cannot be {what} here")
    operation = Operation.DESCRIBE_CONFIGS if reads else Operation.ALTER_CONFIGS
    if not broker.may(request, operation, ResourceKind.TOPIC, name):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    topic = broker.state.topics.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return topic


# --- changing -------------------------------------------------------------------------------------


def alter_configs(broker: Broker, request: ClientRequest) -> None:
    """All configs of a topic are replaced by these."""
    asked = request.body
    assert isinstance(asked, AlterConfigsRequest)
    answers: list[AlteredResource] = []
    accepted: list[tuple[AlteredResource, AnyCommand]] = []
    for one in asked.resources:
        answer = AlteredResource(resource_type=one.resource_type, resource_name=one.resource_name)
        try:
            topic = _topic(broker, request, one.resource_type, one.resource_name, reads=False)
            own = {config.name: configs.check(config.name, config.value) for config in one.configs}
            if not asked.validate_only:
                accepted.append((answer, commands.Configure(topic.topic_id, own)))
        except KafkaError as error:
            answer.error_code, answer.error_message = error.code, error.text or error.code.name
        answers.append(answer)

    def done(outcomes: list[CommandOutcome]) -> None:
        _note(accepted, outcomes)
        request.answer(AlterConfigsResponse(responses=answers))

    broker.write([command for _, command in accepted], done)


def incremental_alter_configs(broker: Broker, request: ClientRequest) -> None:
    asked = request.body
    assert isinstance(asked, IncrementalAlterConfigsRequest)
    answers: list[AlteredResource] = []
    accepted: list[tuple[AlteredResource, AnyCommand]] = []
    for one in asked.resources:
        answer = AlteredResource(resource_type=one.resource_type, resource_name=one.resource_name)
        try:
            topic = _topic(broker, request, one.resource_type, one.resource_name, reads=False)
            own = _changed(topic.configs, one.configs)
            if not asked.validate_only:
                accepted.append((answer, commands.Configure(topic.topic_id, own)))
        except KafkaError as error:
            answer.error_code, answer.error_message = error.code, error.text or error.code.name
        answers.append(answer)

    def done(outcomes: list[CommandOutcome]) -> None:
        _note(accepted, outcomes)
        request.answer(IncrementalAlterConfigsResponse(responses=answers))

    broker.write([command for _, command in accepted], done)


def _note(
    accepted: list[tuple[AlteredResource, AnyCommand]], outcomes: list[CommandOutcome]
) -> None:
    for (answer, _), outcome in zip(accepted, outcomes, strict=True):
        answer.error_code, answer.error_message = outcome.error, outcome.text or None


def _changed(held: Mapping[str, str], changes: list[IncrementalConfig]) -> dict[str, str]:
    own = dict(held)
    seen: set[str] = set()
    for change in changes:
        name = change.name
        if name in seen:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} is changed twice")
        seen.add(name)
        known = configs.TOPIC_CONFIGS.get(name)
        if known is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
        if change.operation == DELETE:
            own.pop(name, None)
        elif change.operation == SET:
            own[name] = configs.check(name, change.value)
        elif change.operation in (APPEND, SUBTRACT) and known.kind == configs.LIST:
            given = [part.strip() for part in (change.value or "").split(",") if part.strip()]
            now = configs.value_of(own, name).split(",")
            if change.operation == APPEND:
                now += [part for part in given if part not in now]
            else:
                now = [part for part in now if part not in given]
            own[name] = configs.check(name, ",".join(now))
        elif change.operation in (APPEND, SUBTRACT):
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name} is no list")
        else:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"nobody knows operation {change.operation}"
            )
    return own
