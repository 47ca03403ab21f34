"""Which requests this broker answers, in which versions: what ApiVersions says is this table."""

from __future__ import annotations

import struct
from types import ModuleType
from typing import Final, NamedTuple

from holdfast.topics.broker.protocol import (
    admin,
    cluster,
    codec,
    data,
    groups,
    security,
    transactions,
)
from holdfast.topics.broker.protocol.codec import Buffer, MalformedMessage

_NEVER: Final = 32_767


class Api(NamedTuple):
    """One kind of request: the versions that are offered, and from which on they are flexible.

    `decoded_from`: older ones are offered and never come. librdkafka before 2.11.1 concludes from
    a range that begins later that there are no groups, codecs or batches; Kafka 4 does the same.
    """

    key: int
    name: str
    request: type
    response: type
    first: int
    last: int
    flexible: int
    decoded_from: int = 0

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible

    def knows(self, version: int) -> bool:
        return max(self.first, self.decoded_from) <= version <= self.last


def _api(
    key: int, name: str, module: ModuleType, first: int, last: int, flexible: int, decoded: int = 0
) -> Api:
    request, response = getattr(module, f"{name}Request"), getattr(module, f"{name}Response")
    return Api(key, name, request, response, first, last, flexible, decoded)


PRODUCE: Final = _api(0, "Produce", data, 0, 13, 9, 3)
FETCH: Final = _api(1, "Fetch", data, 0, 17, 12, 4)
LIST_OFFSETS: Final = _api(2, "ListOffsets", data, 1, 10, 6)
METADATA: Final = _api(3, "Metadata", cluster, 0, 13, 9)
OFFSET_COMMIT: Final = _api(8, "OffsetCommit", groups, 1, 9, 8)
OFFSET_FETCH: Final = _api(9, "OffsetFetch", groups, 1, 9, 6)
FIND_COORDINATOR: Final = _api(10, "FindCoordinator", cluster, 0, 6, 3)
JOIN_GROUP: Final = _api(11, "JoinGroup", groups, 0, 9, 6)
HEARTBEAT: Final = _api(12, "Heartbeat", groups, 0, 4, 4)
LEAVE_GROUP: Final = _api(13, "LeaveGroup", groups, 0, 5, 4)
SYNC_GROUP: Final = _api(14, "SyncGroup", groups, 0, 5, 4)
DESCRIBE_GROUPS: Final = _api(15, "DescribeGroups", groups, 0, 6, 5)
LIST_GROUPS: Final = _api(16, "ListGroups", groups, 0, 5, 3)
SASL_HANDSHAKE: Final = _api(17, "SaslHandshake", security, 0, 1, _NEVER)
API_VERSIONS: Final = _api(18, "ApiVersions", cluster, 0, 4, 3)
CREATE_TOPICS: Final = _api(19, "CreateTopics", admin, 0, 7, 5)
DELETE_TOPICS: Final = _api(20, "DeleteTopics", admin, 0, 6, 4)
DELETE_RECORDS: Final = _api(21, "DeleteRecords", data, 0, 2, 2)
INIT_PRODUCER_ID: Final = _api(22, "InitProducerId", transactions, 0, 5, 2)
OFFSET_FOR_LEADER_EPOCH: Final = _api(23, "OffsetForLeaderEpoch", data, 0, 4, 4)
ADD_PARTITIONS_TO_TXN: Final = _api(24, "AddPartitionsToTxn", transactions, 0, 3, 3)
ADD_OFFSETS_TO_TXN: Final = _api(25, "AddOffsetsToTxn", transactions, 0, 4, 3)
END_TXN: Final = _api(26, "EndTxn", transactions, 0, 4, 3)
TXN_OFFSET_COMMIT: Final = _api(28, "TxnOffsetCommit", transactions, 0, 4, 3)
DESCRIBE_ACLS: Final = _api(29, "DescribeAcls", security, 0, 3, 2)
CREATE_ACLS: Final = _api(30, "CreateAcls", security, 0, 3, 2)
DELETE_ACLS: Final = _api(31, "DeleteAcls", security, 0, 3, 2)
DESCRIBE_CONFIGS: Final = _api(32, "DescribeConfigs", admin, 0, 4, 4)
ALTER_CONFIGS: Final = _api(33, "AlterConfigs", admin, 0, 2, 2)
SASL_AUTHENTICATE: Final = _api(36, "SaslAuthenticate", security, 0, 2, 2)
CREATE_PARTITIONS: Final = _api(37, "CreatePartitions", admin, 0, 3, 2)
DELETE_GROUPS: Final = _api(42, "DeleteGroups", groups, 0, 2, 2)
INCREMENTAL_ALTER_CONFIGS: Final = _api(44, "IncrementalAlterConfigs", admin, 0, 1, 1)
OFFSET_DELETE: Final = _api(47, "OffsetDelete", groups, 0, 0, _NEVER)
DESCRIBE_CLUSTER: Final = _api(60, "DescribeCluster", cluster, 0, 2, 0)
DESCRIBE_TOPIC_PARTITIONS: Final = _api(75, "DescribeTopicPartitions", cluster, 0, 0, 0)

APIS: Final[dict[int, Api]] = {
    api.key: api for api in list(globals().values()) if isinstance(api, Api)
}

_HEADER: Final = struct.Struct("!hhih")
_LENGTH: Final = struct.Struct("!i")
_CORRELATION: Final = struct.Struct("!ii")


class RequestHead(NamedTuple):
    """The header of a request, and where its body begins."""

    key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: int


def read_head(frame: Buffer) -> RequestHead:
    """The header of a request. Of one that we do not know only the first fields count."""
    try:
        key, version, correlation, length = _HEADER.unpack_from(frame)
        at = _HEADER.size
        client = None
        if length >= 0:
            client = str(frame[at : at + length], "utf-8")
            at += length
        if at > len(frame):
            raise MalformedMessage("the client's name is longer than its frame")
        api = APIS.get(key)
        if api is not None and api.knows(version) and api.is_flexible(version):
            at = _skip_tags(frame, at)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedMessage(str(error)) from None
    return RequestHead(key, version, correlation, client, at)


def _skip_tags(frame: Buffer, at: int) -> int:
    count, at = codec.read_uvarint(frame, at)
    for _ in range(count):
        _, at = codec.read_uvarint(frame, at)
        size, at = codec.read_uvarint(frame, at)
        at += size
    return at


def encode_response(api: Api, version: int, correlation_id: int, response: object) -> list[Buffer]:
    """An answer as it goes over the wire, its length in front, in pieces."""
    flexible = api.is_flexible(version)
    body = codec.encode(response, version, flexible)
    # The header of ApiVersions never has tags: who asks does not know yet what we speak.
    tags = b"\0" if flexible and api is not API_VERSIONS else b""
    size = 4 + len(tags) + sum(map(len, body))
    return [_CORRELATION.pack(size, correlation_id) + tags, *body]


def encode_request(
    api: Api, version: int, correlation_id: int, client_id: str | None, request: object
) -> bytes:
    """A request as a client sends it: for tests, probes and the simulator."""
    flexible = api.is_flexible(version)
    name = None if client_id is None else client_id.encode()
    head = _HEADER.pack(api.key, version, correlation_id, -1 if name is None else len(name))
    pieces = [head, name or b"", b"\0" if flexible else b""]
    frame = b"".join([*pieces, *codec.encode(request, version, flexible)])
    return _LENGTH.pack(len(frame)) + frame


def decode_response(api: Api, version: int, frame: Buffer) -> tuple[int, object]:
    """An answer's correlation and message, from a frame without its length."""
    (correlation,) = _LENGTH.unpack_from(frame)
    at = 4
    flexible = api.is_flexible(version)
    if flexible and api is not API_VERSIONS:
        at = _skip_tags(frame, at)
    return correlation, codec.decode(api.response, version, flexible, frame, at)
