"""The other side of the service `Logs`: one agent's logs, as a stream of pieces.

    reading = LogReading(address, node, credentials, query)
    async for piece in reading.pieces(follow=True): ...

When the agent is away `pieces` ends with `Unavailable`; called again, it goes on where it was.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Final, cast

import grpc
import grpc.aio

from holdfast.agent.credential_store import NodeCredentials
from holdfast.agent.log_files import LogPosition, Piece, Query, Source
from holdfast.agent.log_service import OUTPUTS, READ
from holdfast.system.certificates import node_host
from holdfast.wire import rpc
from holdfast.wire.errors import HoldfastError, Refused, Unavailable
from holdfast.wire.proto import cluster_pb2 as pb
from holdfast.wire.values import malformed

# All that is kept of a job's logs on one machine, over a slow line.
LOG_READ_S: Final = 600.0

_OUTPUTS_BACK: Final = {int(number): output for output, number in OUTPUTS.items()}


class LogReading:
    """The logs of one job on one machine, and how far they were read."""

    def __init__(self, address: str, node: str, credentials: NodeCredentials, query: Query) -> None:
        self.address = address
        self.node = node
        self._credentials = credentials
        self._query = query
        self._places: dict[Source, LogPosition] = {}

    async def pieces(self, *, follow: bool) -> AsyncGenerator[Piece, None]:
        """What is there, and with `follow` what comes, until the caller has enough."""
        async with self._channel() as channel:
            call = cast("Any", channel).unary_stream(READ)(
                self._request(follow).SerializeToString(),
                metadata=((rpc.TOKEN_KEY, self._credentials.token),),
                timeout=None if follow else LOG_READ_S,
            )
            try:
                while (raw := await call.read()) is not rpc.EOF:
                    piece = _piece(rpc.parsed(pb.LogsPiece, raw))
                    self._places[piece.source] = piece.place
                    yield piece
            except grpc.aio.AioRpcError as failed:
                raise self._error(failed) from None
            finally:
                call.cancel()

    def _channel(self) -> grpc.aio.Channel:
        identity = self._credentials.identity
        credentials = grpc.ssl_channel_credentials(
            identity.trust_pem, identity.key_pem, identity.certificate_pem
        )
        options = (*rpc.OPTIONS, ("grpc.ssl_target_name_override", node_host(self.node)))
        return grpc.aio.secure_channel(self.address, credentials, options)

    def _request(self, follow: bool) -> pb.LogsRequest:
        query = self._query
        return pb.LogsRequest(
            protocol=rpc.PROTOCOL,
            job=query.job,
            worker=query.worker,
            outputs=[OUTPUTS[output] for output in query.outputs],
            lines=query.lines,
            follow=follow,
            since_s=query.since_s,
            known=[_position(source, place) for source, place in self._places.items()],
        )

    def _error(self, failed: grpc.aio.AioRpcError) -> HoldfastError:
        if rpc.explains_itself(failed):
            return rpc.error_from(failed, self.address)
        kind = Refused if failed.code() is grpc.StatusCode.UNIMPLEMENTED else Unavailable
        return kind(
            f"the agent of {self.node} at {self.address} does not give its logs",
            why=f"{failed.code().name}: {(failed.details() or '')[:300]}",
            fix=f"look whether {self.node} is up: holdfast nodes",
        )


def _position(source: Source, place: LogPosition) -> pb.LogsPosition:
    return pb.LogsPosition(
        worker=source.worker, output=OUTPUTS[source.output], file=place.file, offset=place.offset
    )


def _piece(message: pb.LogsPiece) -> Piece:
    position = message.position
    if position.output not in _OUTPUTS_BACK:
        raise malformed(f"output {position.output} in a piece of a log")
    source = Source(position.worker, _OUTPUTS_BACK[position.output])
    return Piece(source, LogPosition(position.file, position.offset), message.data, message.lost)
