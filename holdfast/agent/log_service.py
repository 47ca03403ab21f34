"""The agent's service `Logs`: what workers wrote, for whoever has credentials of the cluster.

    service = await LogService.start(folders.logs, credential_store, host="10.0.0.7")
    membership.join(node, {"address": service.address, ...})
    ...
    await service.close()

Both sides show certificates; the caller's token is checked too. The agent's own certificate is
renewed now and then: a new server with it takes the port over, and open streams go on in the old
one. Reading is done on threads, so a slow disk does not hold up the agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, Final, Self

import grpc
import grpc.aio

from holdfast.agent.credential_store import CredentialStore, NodeCredentials
from holdfast.agent.log_files import ERR, OUT, LogFiles, LogPosition, Piece, Query, Source
from holdfast.system import logs
from holdfast.system.certificates import Peer, Trust, peer_of
from holdfast.system.retries import Retries
from holdfast.system.tasks import Tasks, end, start_task
from holdfast.wire import rpc, tokens
from holdfast.wire.errors import Full, Occupied, Refused
from holdfast.wire.limits import CERTIFICATE_S, RPC_STOP_S
from holdfast.wire.proto import cluster_pb2 as pb
from holdfast.wire.rpc import Denied
from holdfast.wire.tokens import TokenKind
from holdfast.wire.values import malformed

# A reader of logs that follows is shown what is new so soon: as fast as a person reads on.
LOG_LOOK_S: Final = 0.2
# Readers of one agent's logs at once, those that follow included.
LOG_READERS_MAX: Final = 32
# Positions that a reader hands back when it calls again: an output of each kept worker, and some.
LOG_POSITIONS_MAX: Final = 1_000
# An agent looks so often whether it has new credentials to serve logs with.
LOG_CREDENTIALS_S: Final = 60.0

log = logs.get(__name__)

Context = grpc.aio.ServicerContext[Any, Any]

SERVICE: Final = "holdfast.v1.Logs"
READ: Final = f"/{SERVICE}/Read"
OUTPUTS: Final = {OUT: pb.OUTPUT_OUT, ERR: pb.OUTPUT_ERR}
_OUTPUTS_BACK: Final = {int(number): output for output, number in OUTPUTS.items()}
# Pieces that one look takes from the disk before they are sent.
_PIECES_AT_ONCE: Final = 16


class LogService:
    """Serves the logs under `folder`. Made by `start`, in the agent's loop."""

    def __init__(self, folder: Path, credential_store: CredentialStore, host: str) -> None:
        self._folder = folder
        self._credential_store = credential_store
        self._host = host
        self._credentials: NodeCredentials = credential_store.credentials
        self._server: grpc.aio.Server | None = None
        self._retiring = Tasks()
        self._renewing: asyncio.Task[None] | None = None
        self._readers = 0
        # One thread for each of a few readers; the others wait their turn for milliseconds.
        self._disk = ThreadPoolExecutor(2, "holdfast-logs")
        self.address = ""

    @classmethod
    async def start(
        cls, folder: Path, credential_store: CredentialStore, host: str = "127.0.0.1", port: int = 0
    ) -> Self:
        """Listen; `address` says where. `Occupied`: the port is in use."""
        service = cls(folder, credential_store, host)
        service._server = await service._listen(port)
        service._renewing = start_task(service._renew(), "certificate of logs")
        return service

    async def close(self) -> None:
        """Listen no more, and end the streams that are open."""
        if self._renewing is not None:
            await end(self._renewing)
        await self._retiring.close()
        if self._server is not None:
            await self._server.stop(RPC_STOP_S)
        self._disk.shutdown(wait=False, cancel_futures=True)

    async def _listen(self, port: int) -> grpc.aio.Server:
        identity = self._credentials.identity
        pair = [(identity.key_pem, identity.certificate_pem)]
        credentials = grpc.ssl_server_credentials(
            pair, identity.trust_pem, require_client_auth=True
        )
        server = grpc.aio.server(
            options=rpc.SERVER_OPTIONS, maximum_concurrent_rpcs=2 * LOG_READERS_MAX
        )
        methods = {"Read": grpc.unary_stream_rpc_method_handler(self._read)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        try:
            bound = server.add_secure_port(f"{self._host}:{port}", credentials)
        except RuntimeError as error:
            raise Occupied(
                f"logs cannot be served on {self._host}:{port}",
                why=str(error),
                fix="stop what listens there, or choose another address",
            ) from error
        await server.start()
        self.address = f"{self._host}:{bound}"
        return server

    async def _renew(self) -> None:
        """A server with the new credentials whenever there are some. One that cannot be had is
        tried again as often as we look, while the certificate before it holds."""
        most = max(1, round(CERTIFICATE_S / LOG_CREDENTIALS_S))
        retries = Retries("serving logs with the new certificate", most)
        while True:
            await asyncio.sleep(LOG_CREDENTIALS_S)
            if self._credential_store.credentials == self._credentials or self._server is None:
                continue
            former, credentials = self._server, self._credentials
            self._credentials = self._credential_store.credentials
            try:
                self._server = await self._listen(int(self.address.rpartition(":")[2]))
            except Exception as error:  # whatever it is: the old certificate holds for a while
                self._credentials = credentials
                retries.failed(error)
                continue
            self._retiring.start(former.stop(CERTIFICATE_S), "former server of logs")
            retries.well()
            log.info("logs are served with the new certificate")

    # --- one reader ------------------------------------------------------------------------------

    async def _read(self, raw: bytes, context: Context) -> None:
        try:
            self._check_peer(context)
            request = _request(raw)
            files = LogFiles(self._folder, _query(request), _positions(request))
            if self._readers >= LOG_READERS_MAX:
                raise _busy()
        except Denied as denied:
            log.info("a reader of logs is turned away", peer=context.peer(), reason=str(denied))
            await rpc.deny(context, denied)
        self._readers += 1
        try:
            await self._send(files, context)
            while request.follow:
                await asyncio.sleep(LOG_LOOK_S)
                await self._send(files, context)
        finally:
            self._readers -= 1

    async def _send(self, files: LogFiles, context: Context) -> None:
        found = files.more()
        loop = asyncio.get_running_loop()
        while pieces := await loop.run_in_executor(
            self._disk, lambda: list(islice(found, _PIECES_AT_ONCE))
        ):
            for piece in pieces:
                await context.write(_message(piece).SerializeToString())

    def _check_peer(self, context: Context) -> None:
        """`Denied` unless the caller has a certificate (checked by TLS) and a token of ours."""
        trust = Trust(self._credentials.identity.trust_pem)
        shown = tuple(context.auth_context().get("x509_pem_cert", ()))
        peer: Peer | None = peer_of(shown[0]) if shown else None
        if peer is None or peer.node is None or peer.cluster != trust.cluster:
            stranger = Refused(
                "this is not a member of the cluster",
                why="its certificate is of something else",
                fix="use the credentials that `holdfast up` or `holdfast join` made",
            )
            raise Denied(grpc.StatusCode.UNAUTHENTICATED, stranger)
        try:
            tokens.check(trust, rpc.token_in(context), TokenKind.MEMBER, peer.node)
        except Refused as error:
            raise Denied(grpc.StatusCode.UNAUTHENTICATED, error) from error


def _request(raw: bytes) -> pb.LogsRequest:
    try:
        request = rpc.parsed(pb.LogsRequest, raw)
    except Refused as error:
        raise Denied(grpc.StatusCode.INVALID_ARGUMENT, error) from error
    rpc.check_protocol(request.protocol)
    return request


def _query(request: pb.LogsRequest) -> Query:
    lines = request.lines if request.HasField("lines") else None
    if not request.job or (lines is not None and lines < 0):
        raise _bad("a request for logs without a job, or for fewer than no lines")
    return Query(
        request.job,
        request.worker if request.HasField("worker") else None,
        tuple(_output(number) for number in request.outputs) or (OUT, ERR),
        lines,
        request.since_s,
    )


def _positions(request: pb.LogsRequest) -> Mapping[Source, LogPosition]:
    known = request.known
    if len(known) > LOG_POSITIONS_MAX:
        raise _bad(f"{len(known)} positions in a request for logs")
    return {
        Source(each.worker, _output(each.output)): LogPosition(each.file, max(0, each.offset))
        for each in known
    }


def _output(number: int) -> str:
    if number not in _OUTPUTS_BACK:
        raise _bad(f"output {number}")
    return _OUTPUTS_BACK[number]


def _message(piece: Piece) -> pb.LogsPiece:
    position = pb.LogsPosition(
        worker=piece.source.worker,
        output=OUTPUTS[piece.source.output],
        file=piece.place.file,
        offset=piece.place.offset,
    )
    return pb.LogsPiece(position=position, data=piece.data, lost=piece.lost)


def _bad(what: str) -> Denied:
    return Denied(grpc.StatusCode.INVALID_ARGUMENT, malformed(what))


def _busy() -> Denied:
    error = Full(
        f"{LOG_READERS_MAX} others read logs of this machine already",
        fix="try again when one of them has ended",
    )
    return Denied(grpc.StatusCode.RESOURCE_EXHAUSTED, error)
