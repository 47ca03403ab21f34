"""Addresses: what is understood, and what is said about the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.coordination.address import TLS, EmbeddedAddress, ZooKeeperAddress, parse
from holdfast.wire.errors import Usage


def test_an_embedded_address_names_a_folder_and_its_options(tmp_path: Path) -> None:
    assert parse(f"embedded:{tmp_path}") == EmbeddedAddress(tmp_path)
    given = parse(f"embedded:{tmp_path}?timeout_s=4.5&linger_s=1&tick_ms=500")
    assert given == EmbeddedAddress(tmp_path, 4.5, 1.0, 500)


def test_a_relative_folder_is_fixed_when_the_address_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse("embedded:here") == EmbeddedAddress(tmp_path / "here")


def test_hosts_ports_and_chroot_are_read() -> None:
    address = parse("zk://h1:2182,h2,[::1]:7/a//b/?timeout_s=4")
    assert isinstance(address, ZooKeeperAddress)
    assert address.hosts == (("h1", 2182), ("h2", 2181), ("::1", 7))
    assert (address.chroot, address.timeout_s) == ("/a/b", 4.0)
    assert address.host_list == "h1:2182,h2:2181,[::1]:7"
    assert parse("zk://h1").chroot == parse("zk://h1/").chroot == ""  # type: ignore[union-attr]


def test_tls_is_on_when_any_of_its_options_is_given(tmp_path: Path) -> None:
    for name in ("ca", "cert", "key"):
        (tmp_path / name).touch()
    ca, cert, key = (tmp_path / name for name in ("ca", "cert", "key"))
    tls = {
        "zk://h": None,
        "zk://h?tls=true": TLS(),
        "zk://h?verify=none": TLS(verify="none"),
        f"zk://h?ca={ca}&verify=ca": TLS(ca=ca, verify="ca"),
        f"zk://h?cert={cert}&key={key}": TLS(cert=cert, key=key),
        f"zk://h?tls=false&ca={ca}": None,
    }
    assert {text: parse(text).tls for text in tls} == tls  # type: ignore[union-attr]


def test_a_password_comes_from_the_environment_and_is_never_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("A_PASSWORD", "open sesame")
    address = parse("zk://h?user=alice&password_env=A_PASSWORD")
    assert isinstance(address, ZooKeeperAddress)
    assert (address.user, address.password) == ("alice", "open sesame")
    assert "sesame" not in repr(address) + str(address)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("localhost:2181", "begins neither with embedded: nor with zk://"),
        ("zk:h1", "begins neither"),
        ("embedded:", "names no folder"),
        ("embedded:/x?timout_s=3", "did you mean 'timeout_s'?"),
        ("zk://h?pasword_env=X", "did you mean 'password_env'?"),
        ("zk://h?timeout_s=soon", "not a positive number"),
        ("zk://h?timeout_s=-1", "not a positive number"),
        ("zk://h?timeout_s=1&timeout_s=2", "given twice"),
        ("zk://,h2", "not a host"),
        ("zk://h:port", "not a host"),
        ("zk://h/a/../b", "relative part"),
        ("zk://h?user=alice", "belong together"),
        ("zk://h?user=alice&password_env=NOT_SET_ANYWHERE", "is not set"),
        ("zk://h?tls=perhaps", "neither true nor false"),
        ("zk://h?verify=maybe", "one of host, ca, none"),
        ("zk://h?ca=/nowhere/ca.pem", "is not a file"),
        ("zk://h?cert=/nowhere/cert.pem", "belong together"),
    ],
)
def test_a_wrong_address_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(Usage) as refused:
        parse(text)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "text",
    ["zk://h?password=sesame", "zk://alice:sesame@h", "zoo://alice:sesame@h", "h?password=sesame"],
)
def test_an_error_about_an_address_does_not_show_the_secret_in_it(text: str) -> None:
    with pytest.raises(Usage) as refused:
        parse(text)
    assert "sesame" not in str(refused.value)
