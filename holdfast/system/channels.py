"""Channels to coordinators, and the calls on them: the side of whoever calls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, cast

import grpc
import grpc.aio

from holdfast.system.certificates import TlsIdentity
from holdfast.wire.limits import RPC_CALL_S
from holdfast.wire.names import COORDINATOR
from holdfast.wire.rpc import ATTACH, EOF, OPTIONS, TOKEN_KEY

CHANNEL_OPTIONS: Final[Sequence[tuple[str, Any]]] = (
    *OPTIONS,
    ("grpc.ssl_target_name_override", COORDINATOR),
    # The uplink has its own pauses, and a new leader's address is tried at once.
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
)


def channel_to(address: str, identity: TlsIdentity) -> grpc.aio.Channel:
    """A channel on which both sides show certificates of the cluster."""
    credentials = grpc.ssl_channel_credentials(
        identity.trust_pem, identity.key_pem, identity.certificate_pem
    )
    return grpc.aio.secure_channel(address, credentials, CHANNEL_OPTIONS)


def join_channel_to(address: str, trust_pem: bytes) -> grpc.aio.Channel:
    """A channel of a machine that has no certificate yet, but knows whom to trust."""
    credentials = grpc.ssl_channel_credentials(trust_pem)
    return grpc.aio.secure_channel(address, credentials, CHANNEL_OPTIONS)


class AgentStream:
    """An agent's end of its stream, in bytes."""

    def __init__(self, channel: grpc.aio.Channel, token: str) -> None:
        # Without serializers a call takes bytes; the stubs do not know that.
        opened = cast("Any", channel).stream_stream(ATTACH)
        self._call = opened(metadata=((TOKEN_KEY, token),))
        # A call takes one write at a time; a second one would end it.
        self._writing = asyncio.Lock()

    async def write(self, message: bytes) -> None:
        """Send it, or wait for room. A stream that is over raises with its status."""
        try:
            async with self._writing:
                await self._call.write(message)
        except asyncio.InvalidStateError:
            call = self._call
            status: Any = (await call.code(), await call.initial_metadata())
            more: Any = (await call.trailing_metadata(), await call.details(), "")
            raise grpc.aio.AioRpcError(*status, *more) from None

    async def read(self) -> bytes | None:
        """The next message; None at the end of the stream."""
        raw = await self._call.read()
        return None if raw is EOF else cast("bytes", raw)

    def cancel(self) -> None:
        self._call.cancel()


async def call_once(channel: grpc.aio.Channel, method: str, request: bytes, token: str) -> bytes:
    """A short call, in bytes."""
    called = cast("Any", channel).unary_unary(method)
    answer = await called(request, metadata=((TOKEN_KEY, token),), timeout=RPC_CALL_S)
    return cast("bytes", answer)
