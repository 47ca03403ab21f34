"""Whatever bytes come, decoding gives an operation or `Malformed`, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.coordination.embedded import protocol as p
from holdfast.coordination.embedded import requests
from holdfast.coordination.embedded.jute import Malformed
from holdfast.coordination.embedded.transactions import (
    ACL,
    CheckVersion,
    Create,
    Delete,
    Multi,
    Reject,
    SetACL,
    SetData,
)
from tests.proofs import wire

WRITES = sorted(requests.WRITE_OPCODES)
OPEN = (ACL(31, "world", "anyone"),)


@given(st.sampled_from(WRITES), st.binary(max_size=200))
def test_random_bytes_are_an_operation_or_malformed(opcode: int, body: bytes) -> None:
    try:
        requests.decode_write(opcode, body)
    except Malformed:
        assert requests.read_write(opcode, body) == Reject(p.MARSHALLING_ERROR)


@given(st.binary(max_size=200), st.booleans())
def test_random_bytes_never_break_the_other_decoders(body: bytes, flag: bool) -> None:
    decoders = (
        lambda: requests.decode_connect(body),
        lambda: requests.decode_watches(body, with_persistent=flag),
        lambda: requests.decode_multi_read(body),
        lambda: requests.is_reconfig(body),
    )
    for decode in decoders:
        try:
            decode()
        except Malformed:
            continue


@given(st.data())
def test_a_valid_request_cut_anywhere_is_malformed(data: st.DataObject) -> None:
    body = wire.multi_body(
        [
            (p.CREATE, wire.create_body("/a", b"data", flags=3)),
            (p.SET_DATA, wire.set_data_body("/a", b"other", 7)),
            (p.DELETE, wire.versioned_body("/a", -1)),
        ]
    )
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(Malformed):
        requests.decode_write(p.MULTI, body[:cut])


def test_a_count_that_cannot_be_there_is_refused_before_anything_is_allocated() -> None:
    body = wire.string("/a") + wire.buffer(b"") + wire.integer(0x7FFFFFFF)
    with pytest.raises(Malformed, match="vector"):
        requests.decode_write(p.CREATE, body)


def test_a_multi_of_too_many_operations_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MULTI_OPERATIONS_MAX", 3)
    part = (p.CHECK, wire.versioned_body("/a"))
    assert requests.decode_write(p.MULTI, wire.multi_body([part] * 3)) == Multi(
        (CheckVersion("/a", -1),) * 3
    )
    with pytest.raises(Malformed):
        requests.decode_write(p.MULTI, wire.multi_body([part] * 4))


@pytest.mark.parametrize(
    ("opcode", "body", "operation"),
    [
        (p.DELETE, wire.versioned_body("/a", 3), Delete("/a", 3)),
        (p.SET_DATA, wire.set_data_body("/ü", None, -1), SetData("/ü", None, -1)),
        (p.SET_ACL, wire.set_acl_body("/a", wire.OPEN_ACL, 2), SetACL("/a", OPEN, 2)),
        (p.CREATE, wire.create_body("/a", b"d", 1), Create("/a", b"d", OPEN, 1, -1, False)),
        (p.CREATE2, wire.create_body("/a", b"d", 3), Create("/a", b"d", OPEN, 3, -1, True)),
        # By itself the operation decides what is made, and the flag of a container is ignored.
        (p.CREATE, wire.create_body("/a", b"", 4), Create("/a", b"", OPEN, 0, -1, False)),
        (
            p.CREATE_CONTAINER,
            wire.create_body("/a", b"", 1),
            Create("/a", b"", OPEN, p.FLAG_CONTAINER, -1, True),
        ),
        (
            p.CREATE_CONTAINER,
            wire.create_body("/a", b"", 2),
            Create("/a", b"", OPEN, p.FLAG_CONTAINER_SEQUENTIAL, -1, True),
        ),
        (
            p.CREATE_TTL,
            wire.create_body("/a", b"", 6, ttl_ms=5),
            Create("/a", b"", OPEN, 6, 5, True),
        ),
        # 7 is ours alone: from outside it is as unknown as any other.
        (
            p.CREATE,
            wire.create_body("/a", b"", 7),
            Create("/a", b"", OPEN, p.FLAG_UNKNOWN, -1, False),
        ),
    ],
)
def test_a_write_by_itself_is_read_as_zookeeper_reads_it(
    opcode: int, body: bytes, operation: object
) -> None:
    assert requests.decode_write(opcode, body) == operation


@pytest.mark.parametrize(
    ("opcode", "body", "operation"),
    [
        # Inside a multi the flags decide, and only containers and TTL nodes come with a stat.
        (p.CREATE2, wire.create_body("/a", b"", 0), Create("/a", b"", OPEN, 0, -1, False)),
        (p.CREATE, wire.create_body("/a", b"", 4), Create("/a", b"", OPEN, 4, -1, True)),
        (p.CREATE_CONTAINER, wire.create_body("/a", b"", 1), Create("/a", b"", OPEN, 1, -1, False)),
        (p.CREATE, wire.create_body("/a", b"", 5), Reject(p.MARSHALLING_ERROR)),
        (
            p.CREATE_TTL,
            wire.create_body("/a", b"", 3, ttl_ms=5),
            Create("/a", b"", OPEN, 3, -1, False),
        ),
        (
            p.CREATE_TTL,
            wire.create_body("/a", b"", 5, ttl_ms=5),
            Create("/a", b"", OPEN, 5, 5, True),
        ),
    ],
)
def test_a_create_inside_a_multi_is_read_by_its_flags(
    opcode: int, body: bytes, operation: object
) -> None:
    read = requests.decode_write(p.MULTI, wire.multi_body([(opcode, body)]))
    assert read == Multi((operation,))  # type: ignore[arg-type]


def test_bytes_that_are_no_text_become_a_path_that_is_refused_later() -> None:
    operation = requests.decode_write(p.DELETE, wire.versioned_body(b"/\xff\xfe", 0))
    assert operation == Delete("/\ufffd\ufffd", 0)
