"""TLS on the way to a coordination plane, for clients and for the embedded server.

    context(address.tls, access)     # a client's: as its address says it
    server_context(access)           # the embedded server's, where other machines reach it

A server of ours that is reached from other machines has no certificate from anybody. From the
plane's secret the key of an authority is derived (`system.job_certificates`): whoever has it
makes itself a certificate that every other one accepts, and nobody else can. Both sides show one.
So nothing is asked, renewed or handed out, no clock counts, and whoever has no certificate is not
spoken with.

A worker has not got the secret, but a certificate made from it, in the file with its own
(`for_workers`). That one is good for calling the server, and not for passing for one.
"""

from __future__ import annotations

import ssl
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.coordination.address import SECRET, TLS, Address, ZooKeeperAddress
from holdfast.wire.errors import Refused
from holdfast.wire.handshake import derived

if TYPE_CHECKING:
    from holdfast.coordination.access import Access


def context(tls: TLS, access: Access | None) -> ssl.SSLContext:
    """A client's. `Refused`: it is made from the plane's secret, and there is none."""
    if tls.verify == SECRET:
        return _both_show_one(ssl.PROTOCOL_TLS_CLIENT, *_certificates(access))
    made = ssl.create_default_context(cafile=str(tls.ca) if tls.ca else None)
    made.check_hostname = tls.verify == "host"
    if tls.verify == "none":
        made.verify_mode = ssl.CERT_NONE
    if tls.cert is not None:
        made.load_cert_chain(tls.cert, tls.key)
    return made


def server_context(access: Access) -> ssl.SSLContext:
    """The embedded server's: whoever connects has to show a certificate by the same secret."""
    made = _both_show_one(ssl.PROTOCOL_TLS_SERVER, *_made(access.secret))
    made.num_tickets = 0  # nothing is resumed
    return made


def for_workers(access: Access, address: Address, service: str = "") -> Access:
    """The lesser access, which workers get, or replicas of a service; with a certificate, if the
    plane at that address is reached with one."""
    lesser = access.for_replicas(service) if service else access.for_workers()
    if not isinstance(address, ZooKeeperAddress):
        return lesser
    if address.tls is None or address.tls.verify != SECRET:
        return lesser
    identity_pem, trust_pem = _made(access.secret, serves=False)
    return replace(lesser, certificates=(identity_pem.decode(), trust_pem.decode()))


def _certificates(access: Access | None) -> tuple[bytes, bytes]:
    if access is None:
        raise Refused(
            "this coordination plane is reached with a certificate that its secret makes",
            why="the address says verify=secret, and names no secret",
            fix="add secret_file=FILE to it, with the file `access` of the cluster",
        )
    if access.certificates is not None:
        identity, trust = access.certificates
        return identity.encode(), trust.encode()
    if access.is_lesser:
        raise Refused(
            "this worker has no certificate to reach the coordination plane with",
            why="its agent is of an older version",
            fix="start the agent of this machine again: holdfast down, then holdfast up",
        )
    return _made(access.secret, serves=False)


def _made(secret: str, *, serves: bool = True) -> tuple[bytes, bytes]:
    from holdfast.system.job_certificates import certified  # noqa: PLC0415 - few planes need it

    return certified(derived(secret.encode(), "TLS of the coordination plane"), serves=serves)


def _both_show_one(protocol: int, identity_pem: bytes, trust_pem: bytes) -> ssl.SSLContext:
    made = ssl.SSLContext(protocol)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    # The authority is the plane's own: whatever has its signature belongs to the plane.
    made.check_hostname = False
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_verify_locations(cadata=trust_pem.decode())
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:  # of mode 0700
        path = Path(folder) / "identity.pem"
        path.write_bytes(identity_pem)
        made.load_cert_chain(path)
    return made
