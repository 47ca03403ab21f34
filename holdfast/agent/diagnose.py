"""Why a coordinator cannot be spoken to, when gRPC only says that it cannot be reached.

gRPC gives the same `UNAVAILABLE` for a machine that is down and for one that does not accept our
certificate. So we try again by hand, with the same papers, and see how far we get.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.wire.certificates import COORDINATOR, Identity
from holdfast.wire.errors import HoldfastError, Refused
from holdfast.wire.limits import DIAGNOSE_S


async def explained(error: HoldfastError, address: str, identity: Identity) -> HoldfastError:
    """A better reason for this error, if there is one; else the same."""
    found = await asyncio.to_thread(_refusal, address, identity)
    return found or error


def _refusal(address: str, identity: Identity) -> Refused | None:
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


def _tried(plain: socket.socket, address: str, identity: Identity) -> Refused | None:
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
            said = link.recv(1)
        except TimeoutError:
            return None
        except OSError as error:
            said, why = b"", f"it ended the handshake: {error}"
        else:
            why = "it hung up as soon as it had seen it"
    # One that accepts us speaks first: the settings of HTTP/2.
    if said:
        return None
    return _refused(f"the coordinator at {address} does not accept this node's certificate", why)


def _refused(what: str, why: str) -> Refused:
    return Refused(what, why=why, fix="join this machine to the cluster again, with a join token")


def _context(identity: Identity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(cadata=identity.trust_pem.decode())
    # Python takes keys from files only. This one is never on a disk.
    with _in_memory(identity.certificate_pem + identity.key_pem) as path:
        context.load_cert_chain(path)
    return context


@contextmanager
def _in_memory(data: bytes) -> Iterator[str]:
    handle = os.memfd_create("papers", os.MFD_CLOEXEC)
    try:
        os.write(handle, data)
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)
