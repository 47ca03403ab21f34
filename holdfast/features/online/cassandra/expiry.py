"""The clock that a write brings along.

A cell expires at the server's time plus its TTL, so the same row written a second later would
expire a second later; and of two cells with one timestamp Cassandra keeps the one that expires
later, whatever its bytes are. Protocol 5 has a field for the time by which the server counts
(`now_in_seconds`), which the driver does not fill. Here it is filled.
"""

from __future__ import annotations

import io
import struct
from typing import Any, Final

from cassandra.protocol import BatchMessage, ExecuteMessage, ProtocolHandler

# From this version of the protocol on, which Cassandra speaks since 4.0.
PROTOCOL_MIN: Final = 5
# DataStax's own versions are numbered apart, and do not have the field.
PROTOCOL_MAX: Final = 63
_CLOCK: Final = "holdfast.clock"
# The bits of the flags, of four bytes: 0x0100.
_FLAGS_BYTE: Final = 2
_FLAG: Final = 0x01
_UINT: Final = struct.Struct(">I")


def takes_clock(protocol_version: int) -> bool:
    return PROTOCOL_MIN <= protocol_version <= PROTOCOL_MAX


def set_clock(statement: Any, clock_s: int) -> None:
    """Let the server count from this time, when it says until when the statement's cells live."""
    statement.custom_payload = {_CLOCK: _UINT.pack(clock_s)}


class ClockedProtocol(ProtocolHandler):  # type: ignore[misc]  # the driver has no types
    """The driver's protocol, with the clock of those statements that have one."""

    @classmethod
    def encode_message(
        cls,
        msg: Any,
        stream_id: int,
        protocol_version: int,
        compressor: Any,
        allow_beta_protocol_version: bool,
    ) -> bytes:
        payload = getattr(msg, "custom_payload", None)
        if payload and (clock := payload.get(_CLOCK)) is not None:
            msg = _clocked(msg, clock)
        encoded: bytes = super().encode_message(
            msg, stream_id, protocol_version, compressor, allow_beta_protocol_version
        )
        return encoded


def _clocked(message: Any, clock: bytes) -> Any:
    """Another message: the same one may be sent twice at the same time, to two servers."""
    kind = _ClockedBatch if isinstance(message, BatchMessage) else _ClockedExecute
    made: Any = kind.__new__(kind)
    made.__dict__.update(message.__dict__)
    made.custom_payload = None
    made.clock = clock
    return made


class _ClockedExecute(ExecuteMessage):  # type: ignore[misc]
    clock: bytes

    def _write_query_params(self, f: Any, protocol_version: int) -> None:
        body = io.BytesIO()
        super()._write_query_params(body, protocol_version)
        # The consistency has two bytes, the flags follow; our field is the last one.
        f.write(_flagged(body.getvalue(), 2))
        f.write(self.clock)


class _ClockedBatch(BatchMessage):  # type: ignore[misc]
    clock: bytes

    def send_body(self, f: Any, protocol_version: int) -> None:
        body = io.BytesIO()
        self.keyspace = None  # the statements name theirs
        super().send_body(body, protocol_version)
        # At the end there are the flags, and what they announce.
        after = 2 * bool(self.serial_consistency_level) + 8 * (self.timestamp is not None)
        raw = body.getvalue()
        f.write(_flagged(raw, len(raw) - after - 4))
        f.write(self.clock)


def _flagged(raw: bytes, flags_at: int) -> bytes:
    made = bytearray(raw)
    made[flags_at + _FLAGS_BYTE] |= _FLAG
    return bytes(made)
