"""What an agent gives a worker to prove itself with: the job's secret, and a certificate by it.

The secret of a job is derived from the key of the cluster's authority, which coordinators have and
nobody else: so every leader knows the same one, and it is stored nowhere. It goes to agents with
the order to start a worker. From the secret, in turn, the key of an authority of the job is
derived: whoever has the secret can make itself a certificate that all others of the job accept,
and nobody else can. Nothing has to be asked or renewed, and no clock has to be right.
"""

from __future__ import annotations

import datetime
import hmac
import os
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from holdfast.system.certificates import Authority
from holdfast.wire import worker_messages
from holdfast.wire.handshake import MEMBER_HOST, derived

# A job's certificates are good as long as its secret is. No clock of a machine says otherwise.
_FROM: Final = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_UNTIL: Final = datetime.datetime(2999, 1, 1, tzinfo=datetime.UTC)
_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of P-256


class JobSecrets:
    """The secrets of all jobs of a cluster, for those who have its authority."""

    def __init__(self, authority: Authority) -> None:
        key = serialization.load_pem_private_key(authority.lent()[1], password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey), "an authority's key is on a curve"
        # Of the number, not of a file that has it: versions of a library may spell that otherwise.
        number = key.private_numbers().private_value.to_bytes(32, "big")
        self._key = derived(number, f"job secrets of {authority.cluster}")

    def of(self, job: str) -> str:
        """The job's secret, as text."""
        return hmac.digest(self._key, job.encode(), "sha256").hex()


def equip(folder: Path, secret: str) -> None:
    """Put a worker's credentials into its folder, for its owner's eyes alone."""
    identity_pem, trust_pem = certified(bytes.fromhex(secret))
    files = {worker_messages.IDENTITY_NAME: identity_pem, worker_messages.TRUST_NAME: trust_pem}
    for name, data in {**files, worker_messages.SECRET_NAME: secret.encode()}.items():
        # Not synced: a worker does not outlive its machine.
        path = folder / name
        path.unlink(missing_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)


def certified(secret: bytes, *, serves: bool = True) -> tuple[bytes, bytes]:
    """A new key with its certificate, and the certificate of the secret's authority; all PEM.
    Without `serves` it is good for calling others, and nobody takes its owner for a server."""
    number = int.from_bytes(derived(secret, "authority 1") + derived(secret, "authority 2"), "big")
    authority = ec.derive_private_key(number % (_ORDER - 1) + 1, ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "holdfast job")])
    trust = (
        _builder(name, name, authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority, hashes.SHA256())
    )
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, MEMBER_HOST)])
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if serves:
        purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
    certificate = (
        _builder(subject, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(MEMBER_HOST)]), critical=False)
        .sign(authority, hashes.SHA256())
    )
    key_pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return key_pem + _pem(certificate), _pem(trust)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
