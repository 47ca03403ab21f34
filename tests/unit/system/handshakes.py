"""A TLS handshake in memory, as strict as gRPC's: both sides show a certificate."""

from __future__ import annotations

import ssl
from pathlib import Path

from holdfast.system.certificates import TlsIdentity
from holdfast.wire.names import COORDINATOR


def _context(folder: Path, name: str, identity: TlsIdentity, side: int) -> ssl.SSLContext:
    files = {}
    for kind in ("certificate_pem", "key_pem", "trust_pem"):
        files[kind] = folder / f"{name}.{kind}"
        files[kind].write_bytes(getattr(identity, kind))
    context = ssl.SSLContext(side)
    context.load_cert_chain(files["certificate_pem"], files["key_pem"])
    context.load_verify_locations(files["trust_pem"])
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def handshake(folder: Path, server: TlsIdentity, client: TlsIdentity) -> None:
    """Both must be content; raises what either finds fault with."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        _context(folder, "client", client, ssl.PROTOCOL_TLS_CLIENT).wrap_bio(
            to_client, to_server, server_hostname=COORDINATOR
        ),
        _context(folder, "server", server, ssl.PROTOCOL_TLS_SERVER).wrap_bio(
            to_server, to_client, server_side=True
        ),
    )
    done: set[int] = set()
    for _ in range(20):
        for number, end in enumerate(ends):
            try:
                end.do_handshake()
                done.add(number)
            except ssl.SSLWantReadError:
                continue
        if len(done) == len(ends):
            return
    raise AssertionError("the handshake did not end")
