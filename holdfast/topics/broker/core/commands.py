"""What may be written, as values: each is one entry of the journal.

A command is logged as it was asked, and decided when it is applied: replaying the journal through
the same `BrokerState.apply` gives the same state. What a group's members decide is not decided
again: those commands say the result.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Command(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """One entry of the journal."""


class CommittedOffset(msgspec.Struct, frozen=True, array_like=True):
    """Where a group stands in a partition."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int


Offsets: TypeAlias = dict[str, dict[int, CommittedOffset]]  # by topic and partition


# --- records --------------------------------------------------------------------------------------


class Append(Command, frozen=True, array_like=True, tag="append"):
    """A batch for a partition. It was checked; its sequence is checked when it is applied."""

    topic_id: bytes
    partition: int
    transactional_id: str | None
    batch: bytes


class Trim(Command, frozen=True, array_like=True, tag="trim"):
    """The log begins here from now on: by retention, or because somebody asked."""

    topic_id: bytes
    partition: int
    offset: int


# --- topics ---------------------------------------------------------------------------------------


class CreateTopic(Command, frozen=True, array_like=True, tag="create"):
    """A topic with a fresh id."""

    name: str
    topic_id: bytes
    partitions: int
    configs: dict[str, str]


class DeleteTopic(Command, frozen=True, array_like=True, tag="delete"):
    topic_id: bytes


class AddPartitions(Command, frozen=True, array_like=True, tag="grow"):
    """The topic has so many partitions from now on."""

    topic_id: bytes
    partitions: int


class Configure(Command, frozen=True, array_like=True, tag="configure"):
    """The topic's own configs, all of them."""

    topic_id: bytes
    configs: dict[str, str]


# --- groups ---------------------------------------------------------------------------------------


class SavedMember(msgspec.Struct, frozen=True, array_like=True):
    """A member of a group as it is kept over a restart."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: list[tuple[str, bytes]]
    assignment: bytes


class SavedGroup(msgspec.Struct, frozen=True, array_like=True):
    """A generation of a group as it is kept over a restart."""

    generation: int
    protocol_type: str
    protocol: str | None
    leader: str | None
    members: list[SavedMember]


class SaveGroup(Command, frozen=True, array_like=True, tag="group"):
    group: str
    saved: SavedGroup


class CommitOffsets(Command, frozen=True, array_like=True, tag="offsets"):
    group: str
    offsets: Offsets


class DeleteOffsets(Command, frozen=True, array_like=True, tag="forget"):
    group: str
    partitions: list[tuple[str, int]]


class DeleteGroup(Command, frozen=True, array_like=True, tag="disband"):
    group: str


# --- producers and transactions -------------------------------------------------------------------


class InitProducer(Command, frozen=True, array_like=True, tag="producer"):
    """A producer's id and epoch; -1: it has none yet."""

    transactional_id: str | None
    timeout_ms: int
    producer_id: int
    epoch: int


class AddToTransaction(Command, frozen=True, array_like=True, tag="add"):
    """Partitions, or a group's offsets, become part of a transaction; it begins if need be."""

    transactional_id: str
    producer_id: int
    epoch: int
    partitions: list[tuple[str, int]]
    group: str | None


class CommitInTransaction(Command, frozen=True, array_like=True, tag="txn-offsets"):
    """Offsets that count when the transaction commits."""

    transactional_id: str
    producer_id: int
    epoch: int
    group: str
    offsets: Offsets


class EndTransaction(Command, frozen=True, array_like=True, tag="end"):
    transactional_id: str
    producer_id: int
    epoch: int
    commit: bool


class ExpireTransaction(Command, frozen=True, array_like=True, tag="expire"):
    """Abort it if its time has run out, and fence its producer."""

    transactional_id: str


class ForgetIdle(Command, frozen=True, array_like=True, tag="idle"):
    """Forget producers and transactional ids that were silent for too long."""


# --- access ---------------------------------------------------------------------------------------


class Acl(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One entry of the access list, in Kafka's numbers."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


class AddAcls(Command, frozen=True, array_like=True, tag="allow"):
    acls: list[Acl]


class RemoveAcls(Command, frozen=True, array_like=True, tag="disallow"):
    acls: list[Acl]


AnyCommand: TypeAlias = (
    Append
    | Trim
    | CreateTopic
    | DeleteTopic
    | AddPartitions
    | Configure
    | SaveGroup
    | CommitOffsets
    | DeleteOffsets
    | DeleteGroup
    | InitProducer
    | AddToTransaction
    | CommitInTransaction
    | EndTransaction
    | ExpireTransaction
    | ForgetIdle
    | AddAcls
    | RemoveAcls
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyCommand] = msgspec.msgpack.Decoder(AnyCommand)


def encode(command: AnyCommand) -> bytes:
    """A command as the journal keeps it."""
    return _encoder.encode(command)


def decode(data: bytes) -> AnyCommand:
    """The command that was encoded."""
    return _decoder.decode(data)
