"""At the port where machines join, nobody without a token of this cluster gets as far as a message.

The port asks for no certificate, since a new machine has none. So the token, which comes ahead of
the message, is checked before a byte of that is read; for whom it is made is compared afterwards,
with the name that the message says.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
import grpc.aio

from holdfast.control.rpc.door import Context
from holdfast.wire import logs, rpc, tokens
from holdfast.wire.certificates import Authority
from holdfast.wire.errors import Refused
from holdfast.wire.rpc import Denied
from holdfast.wire.tokens import Kind

log = logs.get(__name__)
_STAND: Final = "/Stand"


class TokenFirst(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Lets calls through that come with a token."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        shown = dict(details.invocation_metadata or ()).get(rpc.TOKEN_KEY, "")
        kind = Kind.STANDBY if details.method.endswith(_STAND) else Kind.JOIN
        try:
            self._check(shown if isinstance(shown, str) else "", kind)
        except Refused as error:
            return _refusing(Denied(grpc.StatusCode.UNAUTHENTICATED, error))
        return await continuation(details)

    def _check(self, text: str, kind: Kind) -> None:
        try:
            node = tokens.read(text).node or ""
        except Refused:
            node = ""  # what is wrong with it is said below
        tokens.check(self._authority, text, kind, node)


def _refusing(denied: Denied) -> grpc.RpcMethodHandler[Any, Any]:
    async def refuse(_requests: AsyncIterator[bytes], context: Context) -> None:
        log.warning("a machine was not let in", peer=context.peer(), reason=str(denied))
        await rpc.deny(context, denied)

    # As a stream: of a single message gRPC would read all before it called us.
    return grpc.stream_stream_rpc_method_handler(refuse)
