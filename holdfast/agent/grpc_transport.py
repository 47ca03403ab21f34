"""The agent's stream to a leader, over gRPC: what the uplink says and hears, in messages."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import grpc.aio

from holdfast.agent.credential_store import CredentialStore
from holdfast.agent.events import OrderAnswer
from holdfast.agent.ports import LeaderAddress, OrderBatch, Welcome
from holdfast.system import channels, logs
from holdfast.system.backoff import Backoff
from holdfast.system.certificates import TlsIdentity
from holdfast.system.channels import AgentStream
from holdfast.wire import rpc, values
from holdfast.wire.errors import HoldfastError, Refused
from holdfast.wire.limits import DIAGNOSE_S, REPORT_S
from holdfast.wire.names import COORDINATOR
from holdfast.wire.orders import Order
from holdfast.wire.proto import cluster_pb2 as pb
from holdfast.wire.reports import NodeFacts

log = logs.get(__name__)


class GrpcTransport:
    """Reaches leaders with the credentials of this node. One for a process: it numbers its streams,
    so that a leader can tell which is the last."""

    def __init__(self, node: str, credential_store: CredentialStore) -> None:
        self._node = node
        self._credential_store = credential_store
        self._process = uuid.uuid4().hex
        self._serial = 0

    @asynccontextmanager
    async def connect(self, contact: LeaderAddress) -> AsyncIterator[GrpcStream]:
        credentials = self._credential_store.credentials
        async with channels.channel_to(contact.address, credentials.identity) as channel:
            self._serial += 1
            hello = pb.Hello(
                protocol=rpc.PROTOCOL,
                cluster=credentials.identity.peer.cluster,
                node=self._node,
                process=self._process,
                serial=self._serial,
            )
            stream = GrpcStream(channel, self._credential_store, contact.address, hello)
            try:
                yield stream
            except grpc.aio.AioRpcError as failed:
                error = rpc.error_from(failed, contact.address)
                if not stream.is_welcome and not rpc.explains_itself(failed):
                    error = await explained(error, contact.address, credentials.identity)
                raise error from None
            finally:
                stream.cancel()


class GrpcStream:
    """One stream. What gRPC raises becomes ours in `connect`."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        credential_store: CredentialStore,
        address: str,
        hello: pb.Hello,
    ) -> None:
        self._channel = channel
        self._credential_store = credential_store
        self._address = address
        self._hello = hello
        self._call = AgentStream(channel, credential_store.credentials.token)
        self._batch: list[bytes] = []  # the orders that are being obeyed, as they are spelled
        self.is_welcome = False

    async def introduce(self, session: str) -> Welcome:
        self._hello.session = session
        await self._send(pb.FromAgent(hello=self._hello))
        message = await self._read()
        if message is None or message.WhichOneof("message") != "welcome":
            raise values.malformed(f"{self._address} did not say welcome")
        self.is_welcome = True
        return Welcome(message.welcome.term, message.welcome.steps_s)

    async def report(self, facts: NodeFacts) -> None:
        await self._send(pb.FromAgent(snapshot=values.facts_bytes(facts)))

    async def receive(self) -> OrderBatch | None:
        while (message := await self._read()) is not None:
            kind = message.WhichOneof("message")
            if kind is None and message.ByteSize():
                log.warning("the coordinator sent what this version does not know")
                continue
            if kind != "orders":
                raise values.malformed("not orders, in the middle of a stream")
            batch = message.orders
            self._batch = list(batch.orders)
            return OrderBatch(batch.term, batch.session, _orders(batch), batch.steps_s)
        return None

    async def refuse(self, batch: OrderBatch, index: int, answer: OrderAnswer) -> None:
        order = values.named(self._batch[index])
        refusal = pb.Refusal(
            term=batch.term,
            job=order.job,
            worker=order.worker,
            order=order.kind,
            reason=values.text(answer.reason),
            fenced=answer.fenced,
        )
        await self._send(pb.FromAgent(refusal=refusal))

    async def until_stale(self) -> None:
        """Renew the credentials when it is time; return when there are new ones."""
        again = Backoff(2 * REPORT_S, 60 * REPORT_S)
        while True:
            await asyncio.sleep(max(0.0, self._credential_store.renewal_s - time.time()))
            try:
                await self._credential_store.renew(self._channel, self._address)
            except HoldfastError as error:
                log.warning("the certificate is not renewed yet", reason=str(error))
                await asyncio.sleep(again.failed())
            else:
                log.info("the certificate was renewed")
                return

    def cancel(self) -> None:
        self._call.cancel()

    async def _send(self, message: pb.FromAgent) -> None:
        await self._call.write(message.SerializeToString())

    async def _read(self) -> pb.ToAgent | None:
        raw = await self._call.read()
        return None if raw is None else rpc.parsed(pb.ToAgent, raw)


def _orders(batch: pb.Orders) -> list[Order | Refused]:
    """Each order, or why it is none."""
    found: list[Order | Refused] = []
    before: Order | None = None
    for spelled in batch.orders:
        try:
            before = values.order_from(spelled, before)
            found.append(before)
        except Refused as error:
            before = None
            found.append(error)
    return found


# --- diagnose -------------------------------------------------------------------------------------
# Why a coordinator cannot be spoken to, when gRPC only says that it cannot be reached.
#
# gRPC gives the same `UNAVAILABLE` for a machine that is down and for one that does not accept our
# certificate. So we try again by hand, with the same credentials, and see how far we get.


async def explained(error: HoldfastError, address: str, identity: TlsIdentity) -> HoldfastError:
    """A better reason for this error, if there is one; else the same."""
    found = await asyncio.to_thread(_refusal, address, identity)
    return found or error


def _refusal(address: str, identity: TlsIdentity) -> Refused | None:
    late_s = time.time() - identity.peer.until_s
    if late_s >= 0:
        return _refused(
            "the certificate of this node has ended",
            f"{late_s:.0f} s ago; it was not renewed in time",
        )
    host, _, port = address.rpartition(":")
    try:
        plain = socket.create_connection((host, int(port)), timeout=DIAGNOSE_S)
    except OSError:
        return None
    with plain:
        return _tried(plain, address, identity)


def _tried(plain: socket.socket, address: str, identity: TlsIdentity) -> Refused | None:
    try:
        link = _context(identity).wrap_socket(plain, server_hostname=COORDINATOR)
    except ssl.SSLCertVerificationError as error:
        return _refused(
            f"{address} does not show a certificate of this node's cluster", error.verify_message
        )
    except (OSError, ValueError):
        return None  # it hung up before it had shown anything: nothing is known
    with link:
        try:
            first = link.recv(1)
        except TimeoutError:
            return None
        except OSError as error:
            first, why = b"", f"it ended the handshake: {error}"
        else:
            why = "it hung up as soon as it had seen it"
    # One that accepts us speaks first: the settings of HTTP/2.
    if first:
        return None
    return _refused(f"the coordinator at {address} does not accept this node's certificate", why)


def _refused(what: str, why: str) -> Refused:
    return Refused(what, why=why, fix="join this machine to the cluster again, with a join token")


def _context(identity: TlsIdentity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(cadata=identity.trust_pem.decode())
    # Python takes keys from files only. This one is never on a disk.
    with _in_memory(identity.certificate_pem + identity.key_pem) as path:
        context.load_cert_chain(path)
    return context


@contextmanager
def _in_memory(data: bytes) -> Iterator[str]:
    handle = os.memfd_create("credentials", os.MFD_CLOEXEC)
    try:
        os.write(handle, data)
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)
