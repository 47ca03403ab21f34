"""A worker's credentials: what it shows to others of its job, and how its connections are kept.

    credentials = Credentials.read(folder, job)

Within a machine a proof is enough (`handshake`): what goes over loopback reaches nobody else.
Between machines there is TLS below it, with certificates that only the job's workers can have,
unless the network was declared trusted: then anybody who can read or change what travels on it
can read and change gradients and weights, and only who connects is checked.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Self

from holdfast.wire import worker_messages
from holdfast.wire.errors import Refused, Usage
from holdfast.wire.handshake import NONCE_BYTES, Called, Calling, Purpose, derived

TRUSTED: Final = "trusted"
_SECRET_BYTES: Final = 32


@dataclass(frozen=True)
class Credentials:
    """The credentials of one job. `trusted`: no TLS, wherever a peer is. They do not print."""

    job: str
    secret: bytes
    folder: Path | None = None  # where the certificates are; None: only proofs are there
    trusted: bool = False

    def __repr__(self) -> str:
        return f"Credentials({self.job!r})"

    @classmethod
    def read(cls, folder: Path, job: str) -> Self:
        """Those that an agent has put into a worker's folder."""
        try:
            secret = bytes.fromhex((folder / worker_messages.SECRET_NAME).read_text())
        except (FileNotFoundError, ValueError):
            secret = b""
        if len(secret) != _SECRET_BYTES:
            raise Usage(
                f"this worker has no secret of job {job!r}, and cannot meet others of it",
                why=f"{folder / worker_messages.SECRET_NAME} is not there, or is none",
                fix="start it with an agent and a coordinator of this version",
            )
        return cls(job, secret, folder, os.environ.get(worker_messages.NETWORK_VARIABLE) == TRUSTED)

    def calling(self, purpose: Purpose, worker: int, to: int) -> Calling:
        nonce = os.urandom(NONCE_BYTES)
        return Calling(self._proof_key, self.job, purpose, worker, to, nonce)

    def called(self, purpose: Purpose, worker: int) -> Called:
        return Called(self._proof_key, self.job, purpose, worker, os.urandom(NONCE_BYTES))

    def encrypts(self, sock: socket.socket) -> bool:
        """Whether this connection has to be TLS. Both ends see the same pair of addresses."""
        return not self.trusted and not within_machine(sock)

    @cached_property
    def client(self) -> ssl.SSLContext:
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    @cached_property
    def server(self) -> ssl.SSLContext:
        return self._context(ssl.PROTOCOL_TLS_SERVER)

    @cached_property
    def _proof_key(self) -> bytes:
        return derived(self.secret, "handshake")

    def _context(self, protocol: int) -> ssl.SSLContext:
        if self.folder is None:
            raise Refused(
                f"job {self.job!r} has no certificates here",
                fix="start its workers with an agent of this version",
            )
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # The authority is the job's own: whatever has its signature is a worker of the job.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(self.folder / worker_messages.IDENTITY_NAME)
        context.load_verify_locations(self.folder / worker_messages.TRUST_NAME)
        if protocol == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0  # nothing is resumed, and a mesh expects no bytes but its own
        return context


def within_machine(sock: socket.socket) -> bool:
    """Whether both ends of a connection are on this machine: its kernel lets nobody else's packets
    say that they come from one of its own addresses."""
    here, there = (_address(end()[0]) for end in (sock.getsockname, sock.getpeername))
    return here == there or (here.is_loopback and there.is_loopback)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    found = ipaddress.ip_address(text.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found
