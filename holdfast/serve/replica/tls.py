"""The TLS of a replica that other machines reach.

Its certificate is that of a worker of its job (`holdfast.wire.job_certificates`). It is not asked
for one: who may ask is known by the service's secret (`holdfast.serve.guard`), which TLS hides. A
replica that listens on loopback has none: nobody else can listen there.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc

from holdfast.wire import talk
from holdfast.wire.job_credentials import TRUSTED

_KEY_END = b"-----END PRIVATE KEY-----\n"


@dataclass(frozen=True, slots=True)
class Tls:
    """`identity`: the file of its key and certificate; `trust`: what others know it by, PEM."""

    identity: Path
    trust: str

    @classmethod
    def found(cls, host: str, environment: Mapping[str, str]) -> Tls | None:
        """None: it listens on loopback, its network is trusted, or no agent has started it."""
        given = environment.get(talk.FOLDER_VARIABLE)
        trusted = environment.get(talk.NETWORK_VARIABLE) == TRUSTED
        if given is None or trusted or _is_loopback(host):
            return None
        identity, trust = Path(given, talk.IDENTITY_NAME), Path(given, talk.TRUST_NAME)
        return cls(identity, trust.read_text()) if identity.is_file() else None

    def context(self) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = ssl.TLSVersion.TLSv1_3
        made.load_cert_chain(self.identity)
        return made

    def credentials(self) -> grpc.ServerCredentials:
        key, end, certificate = self.identity.read_bytes().partition(_KEY_END)
        return grpc.ssl_server_credentials([(key + end, certificate)])


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
