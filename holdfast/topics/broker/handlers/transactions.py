"""Producers' ids, and transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.topics.broker.core import commands
from holdfast.topics.broker.core.acls import Operation, ResourceKind, allows_any
from holdfast.topics.broker.core.commands import Offsets
from holdfast.topics.broker.core.state import CommandOutcome, ProducerId
from holdfast.topics.broker.core.transactions import TIMEOUT_MS_MAX
from holdfast.topics.broker.handlers.offsets import settle, take
from holdfast.topics.broker.handlers.records import may_write_idempotently
from holdfast.topics.broker.protocol.codes import ErrorCode, KafkaError
from holdfast.topics.broker.protocol.groups import CommittedTopic
from holdfast.topics.broker.protocol.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnPartitionResult,
    TxnTopicResult,
)
from holdfast.topics.broker.request import ClientRequest

if TYPE_CHECKING:
    from holdfast.topics.broker.broker import Broker

# From these versions on clients know PRODUCER_FENCED; before, an epoch is invalid.
_FENCED_FROM: Final = 2
_FENCED_FROM_IN_INIT: Final = 4


def _shown(request: ClientRequest, error: ErrorCode, since: int = _FENCED_FROM) -> ErrorCode:
    if error is ErrorCode.PRODUCER_FENCED and request.version < since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.KAFKA_STORAGE_ERROR:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE  # which clients of transactions try again
    return error


def _may(broker: Broker, request: ClientRequest, transactional_id: str) -> bool:
    return broker.may(request, Operation.WRITE, ResourceKind.TRANSACTIONAL_ID, transactional_id)


# --- InitProducerId -------------------------------------------------------------------------------


def init_producer_id(broker: Broker, request: ClientRequest) -> None:
    asked = request.body
    assert isinstance(asked, InitProducerIdRequest)
    error = _refusal(broker, request, asked)
    if error:
        request.answer(InitProducerIdResponse(error_code=error))
        return
    command = commands.InitProducer(
        asked.transactional_id,
        asked.transaction_timeout_ms,
        asked.producer_id,
        asked.producer_epoch,
    )

    def done(outcomes: list[CommandOutcome]) -> None:
        outcome = outcomes[0]
        answer = InitProducerIdResponse(
            error_code=_shown(request, outcome.error, _FENCED_FROM_IN_INIT)
        )
        if not outcome.error:
            assert isinstance(outcome.value, ProducerId)
            answer.producer_id, answer.producer_epoch = outcome.value
        request.answer(answer)

    broker.write([command], done)


def _refusal(broker: Broker, request: ClientRequest, asked: InitProducerIdRequest) -> ErrorCode:
    name = asked.transactional_id
    if name is None:
        link = request.link
        may = may_write_idempotently(broker, request) or allows_any(
            broker.acls_of(link), link.principal, link.host, Operation.WRITE, ResourceKind.TOPIC
        )
        return ErrorCode.NONE if may else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    if not name:
        return ErrorCode.INVALID_REQUEST
    if not _may(broker, request, name):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not 0 < asked.transaction_timeout_ms <= TIMEOUT_MS_MAX:
        return ErrorCode.INVALID_TRANSACTION_TIMEOUT
    if (asked.producer_id < 0) != (asked.producer_epoch < 0):
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


# --- what belongs to a transaction ----------------------------------------------------------------


def add_partitions_to_txn(broker: Broker, request: ClientRequest) -> None:
    asked = request.body
    assert isinstance(asked, AddPartitionsToTxnRequest)
    wanted = [(topic.name, number) for topic in asked.topics for number in topic.partitions]
    errors: dict[tuple[str, int], ErrorCode] = {}
    if not _may(broker, request, asked.transactional_id):
        errors = dict.fromkeys(wanted, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    else:
        for name, number in wanted:
            if not broker.may(request, Operation.WRITE, ResourceKind.TOPIC, name):
                errors[name, number] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif broker.state.partition(name, number) is None:
                errors[name, number] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if errors:
        # All or nothing: the others were not even tried.
        rest = dict.fromkeys(wanted, ErrorCode.OPERATION_NOT_ATTEMPTED)
        _answer_added(request, asked, rest | errors)
        return
    command = commands.AddToTransaction(
        asked.transactional_id, asked.producer_id, asked.producer_epoch, wanted, None
    )

    def done(outcomes: list[CommandOutcome]) -> None:
        code = _shown(request, outcomes[0].error)
        _answer_added(request, asked, dict.fromkeys(wanted, code))

    broker.write([command], done)


def _answer_added(
    request: ClientRequest,
    asked: AddPartitionsToTxnRequest,
    codes: dict[tuple[str, int], ErrorCode],
) -> None:
    topics = [
        TxnTopicResult(
            name=topic.name,
            partitions=[
                TxnPartitionResult(partition=number, error_code=codes[topic.name, number])
                for number in topic.partitions
            ],
        )
        for topic in asked.topics
    ]
    request.answer(AddPartitionsToTxnResponse(topics=topics))


def add_offsets_to_txn(broker: Broker, request: ClientRequest) -> None:
    asked = request.body
    assert isinstance(asked, AddOffsetsToTxnRequest)
    if not _may(broker, request, asked.transactional_id):
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        request.answer(AddOffsetsToTxnResponse(error_code=code))
        return
    if not broker.may(request, Operation.READ, ResourceKind.GROUP, asked.group_id):
        request.answer(AddOffsetsToTxnResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED))
        return
    command = commands.AddToTransaction(
        asked.transactional_id, asked.producer_id, asked.producer_epoch, [], asked.group_id
    )

    def done(outcomes: list[CommandOutcome]) -> None:
        request.answer(AddOffsetsToTxnResponse(error_code=_shown(request, outcomes[0].error)))

    broker.write([command], done)


def txn_offset_commit(broker: Broker, request: ClientRequest) -> None:
    asked = request.body
    assert isinstance(asked, TxnOffsetCommitRequest)
    taken: Offsets = {}
    answers = [
        CommittedTopic(
            name=topic.name,
            partitions=[take(broker, request, topic.name, one, taken) for one in topic.partitions],
        )
        for topic in asked.topics
    ]
    try:
        if not _may(broker, request, asked.transactional_id):
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if not broker.may(request, Operation.READ, ResourceKind.GROUP, asked.group_id):
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        broker.groups.check_commit(
            asked.group_id,
            asked.member_id,
            asked.group_instance_id,
            asked.generation_id,
            broker.now_ms(),
            in_transaction=True,
            keeps_offsets=asked.group_id in broker.state.offsets,
        )
    except KafkaError as error:
        for topic in answers:
            for one in topic.partitions:
                one.error_code = error.code
        request.answer(TxnOffsetCommitResponse(topics=answers))
        return
    command = commands.CommitInTransaction(
        asked.transactional_id, asked.producer_id, asked.producer_epoch, asked.group_id, taken
    )

    def done(outcomes: list[CommandOutcome]) -> None:
        for outcome in outcomes:
            settle(answers, _shown(request, outcome.error))
        request.answer(TxnOffsetCommitResponse(topics=answers))

    broker.write([command] if taken else [], done)


# --- its end --------------------------------------------------------------------------------------


def end_txn(broker: Broker, request: ClientRequest) -> None:
    asked = request.body
    assert isinstance(asked, EndTxnRequest)
    if not _may(broker, request, asked.transactional_id):
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        request.answer(EndTxnResponse(error_code=code))
        return
    command = commands.EndTransaction(
        asked.transactional_id, asked.producer_id, asked.producer_epoch, asked.committed
    )

    def done(outcomes: list[CommandOutcome]) -> None:
        request.answer(EndTxnResponse(error_code=_shown(request, outcomes[0].error)))

    broker.write([command], done)
