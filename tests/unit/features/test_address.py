"""Addresses of online stores: what is understood, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.features.address import FeaturesAddress
from holdfast.wire.errors import Usage

parse = FeaturesAddress.parse


def test_the_clusters_own_valkey_is_a_socket_in_the_file_system(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("open sesame\n")
    address = parse(f"valkey:/run/a.sock?user=me&password-file={tmp_path / 'password'}")
    assert (address.engine, address.socket, address.prefix) == ("valkey", Path("/run/a.sock"), "")
    assert (address.user, address.read_password()) == ("me", "open sesame")


def test_a_redis_has_a_user_in_front_or_behind_or_a_password_alone(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("open sesame")
    front = parse(f"redis://al%40ice@h:7?password-file={secret}")
    assert (front.user, front.hosts, front.read_password()) == ("al@ice", ("h:7",), "open sesame")
    assert parse(f"redis://h:7?user=al%40ice&password-file={secret}") == front
    alone = parse(f"redis://h?password_file={secret}&database=3")
    assert (alone.user, alone.hosts, alone.database) == (None, ("h:6379",), 3)
    assert alone.prefix == "holdfast:"
    assert parse("redis://h").read_password() is None


def test_a_cluster_has_several_hosts_and_a_server_alone_has_one() -> None:
    address = parse("redis://a,b:7,[::1]:8?cluster=yes&prefix=")
    assert address.cluster
    assert (address.hosts, address.prefix) == (("a:6379", "b:7", "[::1]:8"), "")
    with pytest.raises(Usage, match="several Redis servers") as refused:
        parse("redis://a,b")
    assert "cluster=yes" in refused.value.fix
    with pytest.raises(Usage, match="no databases"):
        parse("redis://a?cluster=yes&database=1")


def test_cassandra_has_a_data_center_and_a_keyspace(tmp_path: Path) -> None:
    text = f"cassandra://a,b:7?dc=eu&user=ml&password-file={tmp_path}/p&keyspace=team"
    address = parse(text)
    assert (address.hosts, address.dc, address.keyspace) == (("a:9042", "b:7"), "eu", "team")
    assert (address.user, address.password_file) == ("ml", tmp_path / "p")
    assert (parse("cassandra://a").dc, parse("cassandra://a").keyspace) == (None, "holdfast")


def test_whatever_is_about_certificates_means_tls(tmp_path: Path) -> None:
    for name in ("ca", "cert", "key"):
        (tmp_path / name).touch()
    files = "&".join(f"{name}={tmp_path / name}" for name in ("ca", "cert", "key"))
    for scheme in ("redis", "cassandra"):
        address = parse(f"{scheme}://h?{files}&verify=ca")
        assert address.encrypts
        assert (address.ca, address.key, address.verify) == (
            tmp_path / "ca",
            tmp_path / "key",
            "ca",
        )
        assert parse(f"{scheme}://h?tls=yes").encrypts
        assert not parse(f"{scheme}://h").encrypts
        with pytest.raises(Usage, match="tls=no does not go"):
            parse(f"{scheme}://h?tls=no&ca={tmp_path / 'ca'}")
        with pytest.raises(Usage, match="belong together"):
            parse(f"{scheme}://h?cert={tmp_path / 'cert'}")
        with pytest.raises(Usage, match="is not a file"):
            parse(f"{scheme}://h?ca={tmp_path / 'nothing'}")


def test_an_address_is_written_as_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "ca").touch()
    for text in (
        "valkey:/run/a.sock",
        f"valkey:/with a space/and%3Fa mark/%25.sock?user=a&password-file={tmp_path}/a b",
        "redis://h",
        "redis://h:7?tls=yes&prefix=team:",
        f"redis://a%3A%2F@h,b?cluster=yes&password-env=A&ca={tmp_path / 'ca'}&verify=none",
        "redis://[::1]:1?database=2&prefix=",
        "cassandra://a,b?dc=eu%201&user=a%26b&password-env=A_PASSWORD&keyspace=k",
    ):
        address = parse(text)
        assert parse(address.format()) == parse(str(address)) == parse(address) == address, text
    odd = parse("valkey:/with a space/and%3Fa mark/%25.sock")
    assert odd.socket == Path("/with a space/and?a mark/%.sock")


def test_a_password_is_in_no_text_of_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_PASSWORD", "open sesame")
    named = parse("redis://alice@h?password-env=A_PASSWORD")
    made = parse("valkey:/a.sock").with_password("bob", "open sesame")
    for address in (named, made):
        assert address.read_password() == "open sesame"
        assert "sesame" not in f"{address} {address!r}"
    moved = made.with_password_file(tmp_path / "p")
    assert (moved.password, moved.password_file, moved.user) == (None, tmp_path / "p", "bob")


@pytest.mark.parametrize(
    "text", ["redis://a:sesame@h", "redis://h?password=sesame", "cassandra://a:sesame@h"]
)
def test_a_password_in_an_address_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(Usage, match="holds no password") as refused:
        parse(text)
    assert "sesame" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "word", "fix"),
    [
        ("http://h", "not an address of feature tables", "redis://"),
        ("h:6379", "not an address of feature tables", "valkey:"),
        ("valkey://h:6379", "not the path of a socket", "redis://HOST:PORT"),
        ("valkey:relative.sock", "not the path of a socket", "valkey:/PATH"),
        ("valkey:/", "not the path of a socket", "valkey:/PATH"),
        ("valkey:/a?cluster=yes", "unknown parameter 'cluster'", "did you mean"),
        ("redis:h", "not an address of redis", "redis://"),
        ("redis://", "not a host of redis: ''", "redis://"),
        ("redis://h/2", "not a host of redis", "database=N"),
        ("redis://h:port", "not a host of redis", "redis://"),
        ("redis://h?pasword-file=x", "unknown parameter 'pasword-file'", "'password-file'"),
        ("redis://h?dc=eu", "unknown parameter 'dc' in an address of redis", "did you mean"),
        ("redis://h?database=x", "database=x is no number", "database=1"),
        ("redis://h?database=1&database=2", "given twice", "keep one"),
        ("redis://h?cluster=maybe", "cluster=maybe is unknown", "yes, no"),
        ("redis://h?prefix=a*", "prefix=a* cannot be used", ""),
        ("redis://a@h", "names one place of its password", "password-file=FILE"),
        ("redis://a@h?user=b&password-env=A", "the user is given twice", "keep one"),
        ("redis://h?password-env=A&password-file=b", "one place", "password-file"),
        ("cassandra://h?password-env=A", "nobody's", "user=NAME"),
        ("cassandra://h?keyspace=A-b", "keyspace=A-b cannot be used", ""),
        ("cassandra://h?cluster=yes", "unknown parameter 'cluster'", "did you mean"),
    ],
)
def test_what_is_wrong_is_said_with_what_to_write(text: str, word: str, fix: str) -> None:
    with pytest.raises(Usage) as refused:
        parse(text)
    assert word in refused.value.what
    assert fix in refused.value.fix


def test_a_password_that_cannot_be_read_is_said_when_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("A_PASSWORD", raising=False)
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for query, word in (
        ("password-env=A_PASSWORD", "is not set"),
        (f"password-file={tmp_path / 'nothing'}", "cannot be read"),
        (f"password-file={tmp_path / 'binary'}", "cannot be read"),
        (f"password-file={tmp_path / 'empty'}", "has no password"),
    ):
        address = parse(f"redis://a@h?{query}")
        with pytest.raises(Usage, match=word):
            address.read_password()
