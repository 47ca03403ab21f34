"""Who may use the tables in a Cassandra that asks for passwords, rights and certificates."""

from __future__ import annotations

import datetime
import ipaddress
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from holdfast.features.address import FeaturesAddress
from holdfast.features.online.cassandra.connection import tls_context
from holdfast.features.online.opening import open_store
from holdfast.features.table import Table
from holdfast.wire.errors import HoldfastError, Refused
from tests.conftest import require_part
from tests.contract.features.made import look, newest, row_of
from tests.servers.cassandra import SUPERUSER, CassandraServer, cassandra_missing

_numbers = itertools.count()
COLUMNS = {"trips": "int64", "rating": "float32", "city": "string"}


def certificate(folder: Path, name: str, host: str = "127.0.0.1") -> tuple[Path, Path]:
    """A certificate that vouches for itself, for one address; and its key with it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address(host))
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    public = made.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    paths = folder / f"{name}.pem", folder / f"{name}-key.pem"
    paths[0].write_bytes(public)
    paths[1].write_bytes(private + public)
    return paths


class GuardedNode:
    """A node that asks for a password and for a client's certificate. Its own certificate is for
    another host name than it has, so `verify=ca` is needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cert, self.key = certificate(folder, "node", "127.0.0.99")
        self.client, self.client_key = certificate(folder, "client")
        self.stranger, self.stranger_key = certificate(folder, "stranger")
        self.server = CassandraServer(folder / "server")
        kind = "org.apache.cassandra.security.PEMBasedSslContextFactory"
        self.server.settings = {
            "authenticator": "PasswordAuthenticator",
            "authorizer": "CassandraAuthorizer",
            "client_encryption_options": {
                "enabled": True,
                "optional": False,
                "require_client_auth": True,
                "keystore": str(self.key),
                "truststore": str(self.client),
                "ssl_context_factory": {"class_name": kind},
            },
        }
        self.server.ssl_context = tls_context(self.address())

    def address(
        self, user: str = SUPERUSER[0], password: str = SUPERUSER[1], **query: object
    ) -> FeaturesAddress:
        file = self.folder / f"password-{next(_numbers)}"
        file.write_text(password)
        given = {
            "user": user,
            "password-file": file,
            **{"ca": self.cert, "cert": self.client, "key": self.client_key, "verify": "ca"},
            **query,
        }
        text = "&".join(f"{name}={value}" for name, value in given.items() if value is not None)
        return FeaturesAddress.parse(f"cassandra://{self.server.hosts}?{text}")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedNode]:
    require_part(cassandra_missing())
    made = GuardedNode(tmp_path_factory.mktemp("guarded"))
    try:
        made.server.start()
        yield made
    finally:
        made.server.kill()


def table_of(consistency: str = "strong") -> Table:
    key = {"driver": "string"}
    return Table(f"t{next(_numbers)}", key=key, columns=COLUMNS, consistency=consistency)


def refusal(address: FeaturesAddress, table: Table) -> HoldfastError:
    made = open_store(address)
    try:
        with pytest.raises(Refused) as refused:
            made.prepare(table)
    finally:
        made.close()
    assert refused.value.why
    assert refused.value.fix
    return refused.value


def user(node: GuardedNode, name: str, *rights: str) -> FeaturesAddress:
    """The address of a user who may do this."""
    with node.server.session() as session:
        session.execute(f"CREATE ROLE {name} WITH PASSWORD = 'secret' AND LOGIN = true")
        for right in rights:
            session.execute(f"GRANT {right} TO {name}")
    return node.address(name, "secret")


def test_whoever_has_password_and_certificate_uses_tables(node: GuardedNode) -> None:
    made = open_store(node.address())
    table = table_of()
    made.prepare(table)
    row = row_of(table, trips=1)
    made.write(table, [row])
    assert newest(made, table, row) == row.data
    assert made.status().trouble == ""
    made.close()


@pytest.mark.parametrize(("name", "password"), [("cassandra", "wrong"), ("nobody", "secret")])
def test_a_wrong_password_is_refused_with_where_to_look(
    node: GuardedNode, name: str, password: str
) -> None:
    error = refusal(node.address(name, password), table_of())
    assert "password" in error.fix
    made = open_store(node.address(name, password))
    assert made.status().trouble
    made.close()


def test_no_password_is_refused(node: GuardedNode) -> None:
    address = node.address(user=None, **{"password-file": None})  # type: ignore[arg-type]
    assert "password" in refusal(address, table_of()).fix


def test_certificates_that_do_not_fit_are_refused_with_where_to_look(node: GuardedNode) -> None:
    for wrong in (
        {"ca": node.stranger},
        {"verify": "host"},
        {"cert": node.stranger, "key": node.stranger_key},
    ):
        error = refusal(node.address(**wrong), table_of())
        assert "verify=" in error.fix, wrong


def test_a_user_who_may_make_no_keyspace_is_told_what_an_administrator_has_to_do(
    node: GuardedNode,
) -> None:
    system = "SELECT ON KEYSPACE system_views"
    address = user(node, "reader", system)
    error = refusal(address, Table("t", "k", COLUMNS, copies=5, consistency="eventual"))
    assert "CREATE" in error.why
    assert "CREATE KEYSPACE" in error.fix
    assert "holdfast_5" in error.fix


def test_a_user_who_may_not_ask_how_nodes_are_set_gets_no_strong_table(node: GuardedNode) -> None:
    address = user(node, "blind", "ALL ON ALL KEYSPACES", "CREATE ON ALL KEYSPACES")
    with node.server.session() as session:
        session.execute("REVOKE ALL ON ALL KEYSPACES FROM blind")
        session.execute("GRANT CREATE ON ALL KEYSPACES TO blind")
    error = refusal(address, table_of())
    assert "system_views" in error.fix


def test_a_user_with_the_rights_that_are_named_makes_and_uses_tables(node: GuardedNode) -> None:
    rights = ("SELECT ON KEYSPACE system_views", "CREATE ON ALL KEYSPACES")
    address = user(node, "owner", *rights)
    made = open_store(FeaturesAddress.parse(f"{address}&keyspace=owned"))
    table = table_of()
    made.prepare(table)
    row = row_of(table, trips=1)
    made.write(table, [row])
    assert newest(made, table, row) == row.data
    assert made.status().trouble == ""
    made.forget(table)
    made.close()


def test_a_user_who_may_only_read_does_not_write(node: GuardedNode) -> None:
    owner = open_store(FeaturesAddress.parse(f"{node.address()}&keyspace=shared"))
    table = table_of()
    owner.prepare(table)
    row = row_of(table, trips=1)
    owner.write(table, [row])
    address = user(node, "onlooker", "SELECT ON KEYSPACE shared_3")
    made = open_store(FeaturesAddress.parse(f"{address}&keyspace=shared"))
    assert look(made, table, row.key) == [row.data]
    with pytest.raises(Refused, match="cannot be written") as refused:
        made.write(table, [row])
    assert "GRANT" in refused.value.fix
    made.close()
    owner.close()
