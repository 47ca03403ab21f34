"""Kafka's encoding: what is written is read again, and nothing else is."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.topics.broker.handlers import HANDLERS
from holdfast.topics.broker.protocol import apis, codec
from holdfast.topics.broker.protocol.apis import APIS, Api
from holdfast.topics.broker.protocol.cluster import ApiVersionsResponse, MetadataRequest
from holdfast.topics.broker.protocol.codec import Fixed, MalformedMessage, Octets, Text
from holdfast.topics.broker.protocol.data import FetchRequest, ProduceRequest
from holdfast.topics.broker.protocol.groups import HeartbeatRequest

_BITS = {"b": 8, "h": 16, "i": 32, "q": 64}


def values(hint: Any, version: int) -> st.SearchStrategy[Any]:
    """Values of a field's type."""
    mark = codec._mark(hint)
    if isinstance(mark, Fixed):
        if mark.letter == "?":
            return st.booleans()
        if mark.letter == "16s":
            return st.binary(min_size=16, max_size=16)
        half = 1 << (_BITS[mark.letter] - 1)
        return st.integers(-half, half - 1)
    if isinstance(mark, Text):
        text = st.text(max_size=5)
        return st.none() | text if mark.nullable else text
    if isinstance(mark, Octets):
        data = st.binary(max_size=200)
        return st.none() | data if mark.nullable else data
    inner, nullable = codec._split(hint)
    if get_origin(inner) is list:
        made = st.lists(values(get_args(inner)[0], version), max_size=2)
    else:
        made = messages(inner, version)
    return st.none() | made if nullable else made


def messages(table: type, version: int) -> st.SearchStrategy[Any]:
    hints = get_type_hints(table, include_extras=True)
    fields = {one.name: values(hints[one.name], version) for one in codec._fields(table, version)}
    return st.builds(table, **fields)


def same(left: Any, right: Any) -> bool:
    """Equal, where a view of bytes is its bytes."""
    if dataclasses.is_dataclass(left) and not isinstance(left, type):
        names = [one.name for one in dataclasses.fields(left)]
        return all(same(getattr(left, name), getattr(right, name)) for name in names)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, memoryview) or isinstance(right, memoryview):
        return left is not None and right is not None and bytes(left) == bytes(right)
    return bool(left == right)


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
@settings(max_examples=3)
@given(data=st.data())
def test_a_message_of_any_version_comes_back_as_it_was(api: Api, data: st.DataObject) -> None:
    first = max(api.first, api.decoded_from)
    turns = {first, max(api.flexible - 1, first), api.flexible, api.last}
    for version in sorted(one for one in turns if one <= api.last):
        flexible = api.is_flexible(version)
        for table in (api.request, api.response):
            message = data.draw(messages(table, version))
            raw = b"".join(codec.encode(message, version, flexible))
            again: object = codec.decode(table, version, flexible, raw)
            assert same(again, message)


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
@settings(max_examples=4)
@given(raw=st.binary(max_size=80))
def test_bytes_that_are_no_message_are_refused_and_nothing_else_happens(
    api: Api, raw: bytes
) -> None:
    for version in {max(api.first, api.decoded_from), api.last}:
        try:
            codec.decode(api.request, version, api.is_flexible(version), raw)
        except MalformedMessage:
            continue


def test_a_list_that_says_it_has_a_billion_elements_costs_nothing() -> None:
    raw = b"\xff\xff" + b"\0\0" + b"\0\0\0\0" + b"\x3b\x9a\xca\x00"
    with pytest.raises(MalformedMessage, match="more elements than its frame"):
        codec.decode(ProduceRequest, 3, False, raw)


def test_an_unknown_tagged_field_is_skipped() -> None:
    raw = b"\x02g" + b"\0\0\0\x07" + b"\x02m" + b"\0" + b"\x01\x63\x03abc"
    message = codec.decode(HeartbeatRequest, 4, True, raw)
    assert (message.group_id, message.generation_id, message.member_id) == ("g", 7, "m")


def test_the_bytes_that_librdkafka_sends_too_many_are_ignored() -> None:
    frame = bytes.fromhex("0003000d0000000f000772646b61666b610000000000010000")
    head = apis.read_head(frame)
    asked: object = codec.decode(apis.METADATA.request, head.version, True, frame, head.body)
    assert isinstance(asked, MetadataRequest)
    assert asked.topics is None


def test_a_heartbeat_has_the_bytes_that_kafka_documents() -> None:
    message = HeartbeatRequest(group_id="g", generation_id=7, member_id="m")
    assert b"".join(codec.encode(message, 1, False)) == b"\0\x01g\0\0\0\x07\0\x01m"
    assert b"".join(codec.encode(message, 4, True)) == b"\x02g\0\0\0\x07\x02m\0\0"


def test_a_tagged_field_with_its_default_is_not_sent() -> None:
    message = FetchRequest(max_wait_ms=1, min_bytes=1, topics=[])
    plain = b"".join(codec.encode(message, 12, True))
    message.cluster_id = "c"
    assert b"".join(codec.encode(message, 12, True)) == plain[:-1] + b"\x01\x00\x02\x02c"


def test_every_request_that_is_offered_has_somebody_who_answers_it() -> None:
    assert set(HANDLERS) == set(APIS.values())


def test_the_header_of_an_api_versions_answer_has_no_tags() -> None:
    answer = b"".join(
        apis.encode_response(apis.API_VERSIONS, 3, 5, ApiVersionsResponse(api_keys=[]))
    )
    assert answer[:10] == b"\0\0\0\x0c" + b"\0\0\0\x05" + b"\0\0"


@settings(max_examples=30)
@given(value=st.integers(0, 2**32 - 1))
def test_a_varint_comes_back_as_it_was(value: int) -> None:
    raw = codec.uvarint(value)
    assert codec.read_uvarint(raw, 0) == (value, len(raw))
