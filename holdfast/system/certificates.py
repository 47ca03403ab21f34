"""The cluster's own certificates: an authority, and short-lived ones for servers and nodes.

    authority = Authority.make(folder, cluster)       # once, by whoever makes the cluster
    authority = Authority.open(folder)                # each coordinator
    identity = authority.serve(("10.0.0.1",))         # a coordinator's own
    request, key = request_for("gpu-7")               # an agent: the key never leaves the machine
    certificate = authority.sign(request, "gpu-7")

A certificate says of which cluster it is and for what it is good. There is no list of revoked
ones: they end soon, and are renewed by the live. Keys are P-256: what gRPC's TLS takes everywhere.
"""

from __future__ import annotations

import datetime
import ipaddress
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from holdfast.system.disk import create_durably, make_folder, replace_durably
from holdfast.wire.errors import Corrupt, Missing, Occupied, Refused, Usage
from holdfast.wire.limits import CERTIFICATE_S, CLOCK_DIFFERENCE_S
from holdfast.wire.names import COORDINATOR, checked_name

# Renewed after this part of its life: several tries are left.
CERTIFICATE_RENEW_PART: Final = 0.5
# The cluster's own authority: it outlives the cluster.
AUTHORITY_S: Final = 10 * 365 * 24 * 3_600.0
# A request for a certificate has a key and a name.
CERTIFICATE_REQUEST_BYTES_MAX: Final = 16 * 1024

# A node's certificate has a name below this one: so it can be asked (for logs), and never passes
# for a coordinator or for another node.
_NODES: Final = "nodes.holdfast.internal"
_AUTHORITY_FILE: Final = "authority.pem"
_AUTHORITY_KEY_FILE: Final = "authority.key"

WallClock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """A certificate, its key, and whom it trusts; all PEM. Never in a log: it does not print."""

    certificate_pem: bytes
    key_pem: bytes
    trust_pem: bytes

    def __repr__(self) -> str:
        return f"Identity({peer_of(self.certificate_pem)})"

    @property
    def peer(self) -> Peer:
        return peer_of(self.certificate_pem)


@dataclass(frozen=True, slots=True)
class Peer:
    """Whom a certificate speaks of. `node` is None for a coordinator."""

    cluster: str
    node: str | None
    from_s: float
    until_s: float

    def renewal_s(self) -> float:
        """When it should be renewed, on the wall clock."""
        begun_s = self.from_s + CLOCK_DIFFERENCE_S
        return begun_s + (self.until_s - begun_s) * CERTIFICATE_RENEW_PART


class Authority:
    """The cluster's authority. Whoever has its folder can let machines in."""

    def __init__(
        self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, clock: WallClock
    ) -> None:
        self._certificate = certificate
        self._key = key
        self._clock = clock
        self.cluster = _common_name(certificate.subject)
        self.trust_pem = certificate.public_bytes(serialization.Encoding.PEM)

    @classmethod
    def make(cls, folder: Path, cluster: str, clock: WallClock = time.time) -> Self:
        """A new authority in `folder`. `Occupied`: there is one already, and it stays."""
        checked_name("cluster", cluster)
        make_folder(folder, 0o700)
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(cluster)
        builder = _builder(name, name, key.public_key(), clock(), AUTHORITY_S)
        certificate = builder.add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        ).add_extension(_key_usage(signs_certificates=True), critical=True)
        made = cls(certificate.sign(key, hashes.SHA256()), key, clock)
        # The key is the claim: it is made only where there is none, and first.
        try:
            create_durably(folder / _AUTHORITY_KEY_FILE, _key_pem(key))
        except FileExistsError as error:
            raise Occupied(
                f"{folder} has an authority already",
                why="a new one would lock out every machine of the cluster",
                fix="use it, or choose another folder",
            ) from error
        replace_durably(folder / _AUTHORITY_FILE, made.trust_pem)
        return made

    @classmethod
    def open(cls, folder: Path, clock: WallClock = time.time) -> Self:
        try:
            certificate_pem = (folder / _AUTHORITY_FILE).read_bytes()
            key_pem = (folder / _AUTHORITY_KEY_FILE).read_bytes()
        except FileNotFoundError as error:
            raise Missing(
                f"{folder} has no whole authority of a cluster",
                why=f"{error.filename} is not there",
                fix="make one, or copy the folder from another coordinator",
            ) from error
        try:
            certificate = x509.load_pem_x509_certificate(certificate_pem)
            key = serialization.load_pem_private_key(key_pem, password=None)
            fits = certificate.public_key() == key.public_key()
        except (ValueError, TypeError) as error:
            raise _corrupt(folder, "one of its files is not PEM") from error
        if not fits or not isinstance(key, ec.EllipticCurvePrivateKey):
            raise _corrupt(folder, "the key does not belong to the certificate")
        return cls(certificate, key, clock)

    @staticmethod
    def keep(folder: Path, certificate_pem: bytes, key_pem: bytes) -> None:
        """Keep an authority that was lent. The key last: with it the folder counts."""
        make_folder(folder, 0o700)
        replace_durably(folder / _AUTHORITY_FILE, certificate_pem)
        replace_durably(folder / _AUTHORITY_KEY_FILE, key_pem)

    def lent(self) -> tuple[bytes, bytes]:
        """Certificate and key, for a machine that may coordinate too; both PEM."""
        return self.trust_pem, _key_pem(self._key)

    def serve(self, hosts: Sequence[str], life_s: float = CERTIFICATE_S) -> TlsIdentity:
        """A coordinator's identity, made here, for the names and addresses of its machine."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName(COORDINATOR), *map(_general_name, hosts)]
        certificate = self._signed(
            COORDINATOR, key.public_key(), names, life_s, [ExtendedKeyUsageOID.SERVER_AUTH]
        )
        return TlsIdentity(certificate, _key_pem(key), self.trust_pem)

    def sign(self, request_pem: bytes, node: str, life_s: float = CERTIFICATE_S) -> bytes:
        """The certificate of a node, for its request. The request proves that it has the key;
        everything else that it may ask for is left out."""
        checked_name("node", node)
        request = _request_from(request_pem)
        key = request.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey), "checked with the request"
        names = [
            x509.UniformResourceIdentifier(f"holdfast://{self.cluster}/nodes/{node}"),
            x509.DNSName(node_host(node)),
        ]
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        return self._signed(node, key, names, life_s, purposes)

    def signature(self, payload: bytes) -> bytes:
        """A signature that only this authority can make (of tokens)."""
        return self._key.sign(payload, ec.ECDSA(hashes.SHA256()))

    def signed(self, payload: bytes, signature: bytes) -> bool:
        """Whether this authority made the signature."""
        return _signed_by(self._key.public_key(), payload, signature)

    def now_s(self) -> float:
        return self._clock()

    def _signed(
        self,
        name: str,
        key: ec.EllipticCurvePublicKey,
        names: Sequence[x509.GeneralName],
        life_s: float,
        purposes: Sequence[x509.ObjectIdentifier],
    ) -> bytes:
        subject = _name(self.cluster, name)
        builder = _builder(subject, self._certificate.subject, key, self._clock(), life_s)
        certificate = (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)


# --- the side of a node -------------------------------------------------------------------------


class Trust:
    """The cluster's authority as its nodes know it: it checks signatures, and makes none."""

    def __init__(self, trust_pem: bytes, clock: WallClock = time.time) -> None:
        certificate = x509.load_pem_x509_certificate(trust_pem)
        key = certificate.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey), "an authority's key is on a curve"
        self._key = key
        self._clock = clock
        self.cluster = _common_name(certificate.subject)

    def signed(self, payload: bytes, signature: bytes) -> bool:
        """Whether the authority made the signature."""
        return _signed_by(self._key, payload, signature)

    def now_s(self) -> float:
        return self._clock()


def node_host(node: str) -> str:
    """The name in the certificate of a node under which it is called, wherever it listens."""
    return f"{node}.{_NODES}"


def request_for(node: str) -> tuple[bytes, bytes]:
    """A request for a node's certificate, and the new key; both PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, checked_name("node", node))])
    )
    request = builder.sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM), _key_pem(key)


def requested_node(request_pem: bytes) -> str:
    """Whose certificate is asked for; `Refused` if this is not a request of a node."""
    try:
        return checked_name("node", _common_name(_request_from(request_pem).subject))
    except Usage as error:
        raise _bad_request(str(error)) from error


def peer_of(certificate_pem: bytes) -> Peer:
    """Whom a certificate speaks of. It is not checked: the TLS below has done that, or will."""
    try:
        certificate = x509.load_pem_x509_certificate(certificate_pem)
    except ValueError as error:
        raise Refused("this is not a certificate", why=str(error)) from error
    cluster, name = _organisation(certificate.subject), _common_name(certificate.subject)
    return Peer(
        cluster,
        None if name == COORDINATOR else name,
        certificate.not_valid_before_utc.timestamp(),
        certificate.not_valid_after_utc.timestamp(),
    )


# --- private --------------------------------------------------------------------------------


def _request_from(request_pem: bytes) -> x509.CertificateSigningRequest:
    if len(request_pem) > CERTIFICATE_REQUEST_BYTES_MAX:
        raise _bad_request(f"it has {len(request_pem)} bytes")
    try:
        request = x509.load_pem_x509_csr(request_pem)
        key, proven = request.public_key(), request.is_signature_valid
    except (ValueError, TypeError) as error:
        raise _bad_request(str(error)) from error
    if not proven:
        raise _bad_request("its signature is not by the key that it names")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise _bad_request("its key is not on the curve P-256")
    return request


def _signed_by(key: ec.EllipticCurvePublicKey, payload: bytes, signature: bytes) -> bool:
    try:
        key.verify(signature, payload, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def _bad_request(why: str) -> Refused:
    return Refused(
        "this is not a request for a node's certificate",
        why=why,
        fix="run the same version of holdfast on both machines",
    )


def _corrupt(folder: Path, why: str) -> Corrupt:
    return Corrupt(
        f"the authority in {folder} is damaged",
        why=why,
        fix="copy the folder from another coordinator or from a backup",
    )


def _name(cluster: str, name: str | None = None) -> x509.Name:
    attributes = [
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, cluster),
        x509.NameAttribute(NameOID.COMMON_NAME, name or cluster),
    ]
    return x509.Name(attributes)


def _common_name(name: x509.Name) -> str:
    return _attribute(name, NameOID.COMMON_NAME)


def _organisation(name: x509.Name) -> str:
    return _attribute(name, NameOID.ORGANIZATION_NAME)


def _attribute(name: x509.Name, kind: x509.ObjectIdentifier) -> str:
    found = name.get_attributes_for_oid(kind)
    return str(found[0].value) if len(found) == 1 else ""


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now_s: float,
    life_s: float,
) -> x509.CertificateBuilder:
    now = datetime.datetime.fromtimestamp(now_s, datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(seconds=CLOCK_DIFFERENCE_S))
        .not_valid_after(now + datetime.timedelta(seconds=life_s))
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
