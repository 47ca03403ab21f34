"""From values to bytes and back. Any object with `encode` and `decode` is a codec: Avro or
Protobuf come as a user's two functions."""

from __future__ import annotations

import math
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
        try:
            return str(value).encode()
        except UnicodeEncodeError as error:
            raise Usage(
                "a record's value is text that UTF-8 cannot say",
                why=str(error),
                fix="text.encode(errors='surrogateescape') and codec=topics.BYTES keep it as it is",
            ) from error

    def decode(self, data: bytes) -> Any:
        return data.decode()


class _MsgspecCodec:
    """One encoder and decoder, made once."""

    def __init__(self, encoder: Any, decoder: Any) -> None:
        self._encoder = encoder
        self._decoder = decoder

    def encode(self, value: Any) -> bytes:
        try:
            return bytes(self._encoder.encode(value))
        except (TypeError, ValueError, OverflowError) as error:
            raise Usage(
                f"a {type(value).__name__} cannot be a record's value here",
                why=str(error),
                fix="give what the codec of this producer takes, or another codec",
            ) from error

    def decode(self, data: bytes) -> Any:
        return self._decoder.decode(data)


class _JsonCodec(_MsgspecCodec):
    """JSON has no NaN and no infinity: the encoder makes `null` of them, which is another value."""

    def encode(self, value: Any) -> bytes:
        data = super().encode(value)
        if b"null" in data and not _is_finite(msgspec.to_builtins(value)):
            raise Usage(
                "a record's value has a number that JSON cannot say: NaN or infinity",
                why="it would arrive as null",
                fix="send None where there is no number, or codec=topics.msgpack()",
            )
        return data


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return not isinstance(value, list | tuple) or all(map(_is_finite, value))


def json_of(kind: Any) -> RecordCodec:
    """JSON that is checked against a type (a msgspec struct, a dataclass, `list[int]`, …)."""
    return _JsonCodec(msgspec.json.Encoder(), msgspec.json.Decoder(kind))


def msgpack(kind: Any = Any) -> RecordCodec:
    """MessagePack that is checked against a type."""
    return _MsgspecCodec(msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(kind))


BYTES: Final[RecordCodec] = _BytesCodec()
TEXT: Final[RecordCodec] = _TextCodec()
JSON: Final[RecordCodec] = json_of(Any)
