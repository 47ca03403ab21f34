"""The cluster's authority: what it signs, what it refuses, and what it keeps to itself."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from holdfast.system import certificates
from holdfast.system.certificates import Authority, TlsIdentity
from holdfast.wire.errors import Corrupt, Missing, Occupied, Refused, Usage
from holdfast.wire.limits import CERTIFICATE_S
from tests.unit.system.handshakes import handshake


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.make(tmp_path / "authority", "reef")


def node_identity(authority: Authority, node: str, life_s: float = CERTIFICATE_S) -> TlsIdentity:
    request, key = certificates.request_for(node)
    return TlsIdentity(authority.sign(request, node, life_s), key, authority.trust_pem)


def test_a_node_and_a_coordinator_of_one_cluster_accept_each_other(
    authority: Authority, tmp_path: Path
) -> None:
    handshake(tmp_path, authority.serve(("127.0.0.1",)), node_identity(authority, "n1"))


def test_a_stranger_with_a_certificate_of_another_cluster_is_not_let_in(
    authority: Authority, tmp_path: Path
) -> None:
    other = Authority.make(tmp_path / "other", "reef")
    theirs = node_identity(other, "n1")
    stranger = TlsIdentity(theirs.certificate_pem, theirs.key_pem, authority.trust_pem)
    with pytest.raises(ssl.SSLError):
        handshake(tmp_path, authority.serve(("127.0.0.1",)), stranger)


def test_a_node_does_not_speak_to_a_coordinator_of_another_cluster(
    authority: Authority, tmp_path: Path
) -> None:
    other = Authority.make(tmp_path / "other", "reef")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path, other.serve(("127.0.0.1",)), node_identity(authority, "n1"))


def test_a_node_cannot_pass_for_a_coordinator(authority: Authority, tmp_path: Path) -> None:
    node = node_identity(authority, "n1")
    with pytest.raises(ssl.SSLError):
        handshake(tmp_path, node, node)


def test_an_expired_certificate_is_not_let_in(authority: Authority, tmp_path: Path) -> None:
    old = node_identity(authority, "n1", life_s=-1.0)
    with pytest.raises(ssl.SSLError):
        handshake(tmp_path, authority.serve(("127.0.0.1",)), old)


def test_a_certificate_says_whose_it_is_and_when_to_renew_it(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path, "reef", clock=lambda: 1_000_000.0)
    peer = node_identity(authority, "n1", life_s=1_000.0).peer
    assert (peer.cluster, peer.node, peer.until_s) == ("reef", "n1", 1_001_000.0)
    assert peer.from_s < 1_000_000.0 < peer.renewal_s() < peer.until_s
    assert authority.serve(()).peer.node is None


def test_an_authority_is_the_same_after_it_was_opened_again(
    authority: Authority, tmp_path: Path
) -> None:
    again = Authority.open(tmp_path / "authority")
    assert (again.cluster, again.trust_pem) == ("reef", authority.trust_pem)
    assert again.signed(b"words", authority.signature(b"words"))
    assert not again.signed(b"other words", authority.signature(b"words"))
    handshake(tmp_path, again.serve(("127.0.0.1",)), node_identity(authority, "n1"))


def test_an_authority_is_never_replaced(authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(Occupied):
        Authority.make(tmp_path / "authority", "reef")
    assert Authority.open(tmp_path / "authority").trust_pem == authority.trust_pem


def test_only_its_owner_can_read_the_key(authority: Authority, tmp_path: Path) -> None:
    for path in (tmp_path / "authority").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_missing_or_damaged_authority_is_told(authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(Missing):
        Authority.open(tmp_path / "nothing")
    other = Authority.make(tmp_path / "other", "reef")
    (tmp_path / "authority" / "authority.pem").write_bytes(other.trust_pem)
    with pytest.raises(Corrupt, match="damaged"):
        Authority.open(tmp_path / "authority")
    (tmp_path / "authority" / "authority.key").write_bytes(b"noise")
    with pytest.raises(Corrupt):
        Authority.open(tmp_path / "authority")


def _request(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, name: str) -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _forged() -> bytes:
    """A request whose signature was made by another key."""
    mine, theirs = (certificates.request_for("n1")[0] for _ in range(2))
    one, two = (x509.load_pem_x509_csr(each) for each in (mine, theirs))
    raw = one.public_bytes(serialization.Encoding.DER)
    if len(one.signature) != len(two.signature):
        return _forged()
    forged = x509.load_der_x509_csr(raw.replace(one.signature, two.signature))
    return forged.public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize(
    "request_pem",
    [
        b"",
        b"noise",
        b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n",
        b"x" * 100_000,
        _forged(),
        _request(ec.generate_private_key(ec.SECP384R1()), "n1"),
        _request(rsa.generate_private_key(65537, 2048), "n1"),
    ],
    ids=["empty", "noise", "no request", "huge", "forged", "other curve", "RSA"],
)
def test_a_bad_request_for_a_certificate_is_refused(
    authority: Authority, request_pem: bytes
) -> None:
    with pytest.raises(Refused, match="not a request"):
        authority.sign(request_pem, "n1")


@pytest.mark.parametrize("name", ["", "a/b", "..", "n\n1", "x" * 64, "-n"])
def test_a_name_that_is_none_is_refused(authority: Authority, name: str) -> None:
    with pytest.raises(Usage):
        certificates.request_for(name)
    with pytest.raises(Usage):
        authority.sign(certificates.request_for("n1")[0], name)
    if name and len(name) <= 64:
        bad = _request(ec.generate_private_key(ec.SECP256R1()), name)
        with pytest.raises(Refused):
            certificates.requested_node(bad)


def test_an_identity_does_not_print_its_key(authority: Authority) -> None:
    identity = node_identity(authority, "n1")
    assert "PRIVATE" not in repr(identity)
    assert "n1" in repr(identity)
