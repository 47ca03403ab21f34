"""From values to bytes and back. Any object with `encode` and `decode` is a codec: Avro or
Protobuf come as a user's two functions."""

from __future__ import annotations

from typing import Any, Final, Protocol

import msgspec

from holdfast.wire.errors import Usage


class RecordCodec(Protocol):
    """What turns a record's value into bytes and back. A value of None has no bytes (it deletes its
    key from a compacted topic), and no codec sees it."""

    def encode(self, value: Any, /) -> bytes: ...

    def decode(self, data: bytes, /) -> Any: ...


class _BytesCodec:
    def encode(self, value: Any) -> bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise Usage(
                f"a record's value is bytes here, not {type(value).__name__}",
                why="without a codec, values go as they are",
                fix="codec=topics.JSON or codec=topics.TEXT, for the producer and the consumer",
            )
        return bytes(value)

    def decode(self, data: bytes) -> Any:
        return data


class _TextCodec:
    def encode(self, value: Any) -> bytes:
        return str(value).encode()

    def decode(self, data: bytes) -> Any:
        return data.decode()


class _MsgspecCodec:
    """One encoder and decoder, made once."""

    def __init__(self, encoder: Any, decoder: Any) -> None:
        self._encoder = encoder
        self._decoder = decoder

    def encode(self, value: Any) -> bytes:
        return bytes(self._encoder.encode(value))

    def decode(self, data: bytes) -> Any:
        return self._decoder.decode(data)


def json_of(kind: Any) -> RecordCodec:
    """JSON that is checked against a type (a msgspec struct, a dataclass, `list[int]`, …)."""
    return _MsgspecCodec(msgspec.json.Encoder(), msgspec.json.Decoder(kind))


def msgpack(kind: Any = Any) -> RecordCodec:
    """MessagePack that is checked against a type."""
    return _MsgspecCodec(msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(kind))


BYTES: Final[RecordCodec] = _BytesCodec()
TEXT: Final[RecordCodec] = _TextCodec()
JSON: Final[RecordCodec] = json_of(Any)
