"""Who may connect and what for: SASL, TLS and access lists, with confluent-kafka."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from holdfast.topics.broker.protocol import apis
from holdfast.topics.broker.protocol.cluster import MetadataRequest
from holdfast.topics.broker.protocol.codes import ErrorCode
from holdfast.topics.broker.protocol.security import (
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from tests.servers.broker import BrokerServer, Wire
from tests.waiting import PATIENCE_S, eventually

SOON_S = 60.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerServer]:
    folder = tmp_path_factory.mktemp("broker")
    users = folder / "users"
    users.write_text("admin top-secret super\nalice pencil\n")
    with BrokerServer(folder / "server", options=("--sasl-users", str(users))) as server:
        yield server


def options(broker: BrokerServer, user: str, password: str, mechanism: str = "PLAIN") -> Any:
    return {
        "bootstrap.servers": broker.hosts,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
        "log_level": 0,
    }


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_who_knows_the_password_is_let_in(broker: BrokerServer, mechanism: str) -> None:
    admin = AdminClient(options(broker, "admin", "top-secret", mechanism))
    assert admin.list_topics(timeout=PATIENCE_S).brokers


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_who_does_not_is_not(broker: BrokerServer, mechanism: str) -> None:
    errors: list[KafkaError] = []
    given = options(broker, "admin", "wrong", mechanism) | {"error_cb": errors.append}
    admin = AdminClient(given)

    def told() -> bool:
        admin.poll(0.1)
        return any(one.code() == KafkaError._AUTHENTICATION for one in errors)

    eventually(told, "the client is told why")


def test_nothing_is_answered_before_the_login(broker: BrokerServer) -> None:
    with broker.wire() as wire:
        wire.send(apis.METADATA, 9, MetadataRequest(topics=None))
        assert wire.is_closed()


def test_the_handshake_of_old_clients_is_understood(broker: BrokerServer) -> None:
    with broker.wire() as wire:
        asked = SaslHandshakeRequest(mechanism="PLAIN")
        assert wire.call(apis.SASL_HANDSHAKE, 0, asked).error_code == 0
        token = b"\0alice\0pencil"
        wire.socket.sendall(len(token).to_bytes(4, "big") + token)
        assert wire.read(4) == bytes(4)
        assert wire.call(apis.METADATA, 9, MetadataRequest(topics=[])).brokers


def test_mechanisms_and_states_that_cannot_be_are_refused(broker: BrokerServer) -> None:
    def handshake(wire: Wire, mechanism: str) -> Any:
        asked = SaslHandshakeRequest(mechanism=mechanism)
        return wire.call(apis.SASL_HANDSHAKE, 1, asked)

    with broker.wire() as wire:
        answer = handshake(wire, "GSSAPI")
        assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert "SCRAM-SHA-512" in answer.mechanisms
        empty = SaslAuthenticateRequest(auth_bytes=b"")
        early = wire.call(apis.SASL_AUTHENTICATE, 2, empty)
        assert early.error_code == ErrorCode.ILLEGAL_SASL_STATE
        handshake(wire, "PLAIN")
        wrong = wire.call(apis.SASL_AUTHENTICATE, 2, empty)
        assert wrong.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert wire.is_closed()


def test_a_user_may_do_what_the_list_says_and_nothing_else(broker: BrokerServer) -> None:
    admin = AdminClient(options(broker, "admin", "top-secret"))
    admin.create_topics([NewTopic("hers", 1)])["hers"].result()
    admin.create_topics([NewTopic("secret", 1)])["secret"].result()
    hers = options(broker, "alice", "pencil")
    assert AdminClient(hers).list_topics(timeout=PATIENCE_S).topics == {}
    assert refusal(hers, "hers") == KafkaError.TOPIC_AUTHORIZATION_FAILED

    entries = [
        AclBinding(kind, name, pattern, "User:alice", "*", operation, AclPermissionType.ALLOW)
        for kind, name, pattern, operation in (
            (ResourceType.TOPIC, "her", ResourcePatternType.PREFIXED, AclOperation.ALL),
            (ResourceType.GROUP, "hers", ResourcePatternType.LITERAL, AclOperation.READ),
        )
    ]
    for future in admin.create_acls(entries).values():
        future.result()
    anything: Any = None
    everything = AclBindingFilter(
        ResourceType.ANY,
        anything,
        ResourcePatternType.ANY,
        anything,
        anything,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert len(admin.describe_acls(everything).result()) == 2
    assert refusal(hers, "hers") is None
    assert refusal(hers, "secret") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert set(AdminClient(hers).list_topics(timeout=PATIENCE_S).topics) == {"hers"}
    reading = Consumer(hers | {"group.id": "hers"})
    reading.assign([TopicPartition("hers", 0, 0)])
    message = reading.poll(PATIENCE_S)
    assert message is not None
    assert message.error() is None
    reading.commit(asynchronous=False)
    reading.close()
    alice = AdminClient(hers)
    with pytest.raises(KafkaException) as caught:
        next(iter(alice.create_acls(entries[:1]).values())).result()
    assert caught.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    (gone,) = admin.delete_acls([everything]).values()
    assert len(gone.result()) == 2
    assert refusal(hers, "hers") == KafkaError.TOPIC_AUTHORIZATION_FAILED


def refusal(given: Any, topic: str) -> int | None:
    """Why a record was not taken; None: it was."""
    found: list[int | None] = []
    producing = Producer(given | {"message.timeout.ms": int(SOON_S * 1000)})
    producing.produce(
        topic,
        value="x",
        partition=0,
        on_delivery=lambda error, _message: found.append(error.code() if error else None),
    )
    producing.flush(PATIENCE_S)
    return found[0]


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate for loopback, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "cert.pem", folder / "key.pem"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths


def test_it_speaks_tls(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    files = ("--tls-cert", str(certificate), "--tls-key", str(key))
    server = BrokerServer(tmp_path / "server", options=files)
    server.launch()
    try:
        given: Any = {
            "bootstrap.servers": server.hosts,
            "security.protocol": "SSL",
            "ssl.ca.location": str(certificate),
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
        assert AdminClient(given).list_topics(timeout=PATIENCE_S).brokers
    finally:
        server.stop()
