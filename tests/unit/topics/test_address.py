"""Addresses of topics: what is understood, what clients are told, what is said of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.topics.address import TopicsAddress
from holdfast.wire.errors import Usage

parse = TopicsAddress.parse


def test_servers_have_a_port_and_a_prefix_is_kept() -> None:
    address = parse("kafka://h1:9093,h2,[::1]:7?prefix=team.")
    assert address.servers == ("h1:9093", "h2:9092", "[::1]:7")
    assert (address.prefix, address.security) == ("team.", "plain")
    assert address.full_name("events") == "team.events"
    assert (address.own_name("team.events"), address.own_name("events")) == ("events", None)
    assert address.client_settings() == {
        "bootstrap.servers": "h1:9093,h2:9092,[::1]:7",
        "security.protocol": "PLAINTEXT",
    }


def test_a_user_is_sent_over_tls_unless_the_address_says_otherwise(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("open sesame\n")
    address = parse(f"kafka://h?user=alice&password-file={secret}")
    assert address.client_settings() == {
        "bootstrap.servers": "h:9092",
        "security.protocol": "SASL_SSL",
        "metadata.recovery.strategy": "none",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": "open sesame",
        "ssl.endpoint.identification.algorithm": "https",
        "enable.ssl.certificate.verification": True,
    }
    plain = parse(
        f"kafka://h?security=sasl_plain&mechanism=plain&user=alice&password_file={secret}"
    )
    settings = plain.client_settings()
    assert settings["security.protocol"] == "SASL_PLAINTEXT"
    assert settings["sasl.mechanism"] == "PLAIN"
    assert "ssl.ca.location" not in settings


def test_certificates_are_passed_on_and_checked_as_told(tmp_path: Path) -> None:
    for name in ("ca", "cert", "key"):
        (tmp_path / name).touch()
    files = "&".join(f"{name}={tmp_path / name}" for name in ("ca", "cert", "key"))
    settings = parse(f"kafka://h?{files}&verify=ca").client_settings()
    assert settings["security.protocol"] == "SSL"
    assert settings["ssl.ca.location"] == str(tmp_path / "ca")
    assert settings["ssl.certificate.location"] == str(tmp_path / "cert")
    assert settings["ssl.key.location"] == str(tmp_path / "key")
    assert settings["ssl.endpoint.identification.algorithm"] == "none"
    assert settings["enable.ssl.certificate.verification"] is True


def test_an_address_is_written_as_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "ca").touch()
    for text in (
        "kafka://h",
        "kafka://h1,h2:7/?prefix=a-b_c.",
        f"kafka://h?ca={tmp_path / 'ca'}",
        f"kafka://[::1]:1?user=a&password-file={tmp_path}/a b&mechanism=PLAIN&verify=none",
        "kafka://h?security=sasl_plain&user=a&password-env=A_PASSWORD",
    ):
        address = parse(text)
        assert parse(address.format()) == parse(str(address)) == parse(address) == address


def test_a_password_is_in_no_text_of_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_PASSWORD", "open sesame")
    named = parse("kafka://h?user=alice&password-env=A_PASSWORD&security=sasl_plain")
    made = parse("kafka://h").with_password("alice", "open sesame")
    for address in (named, made):
        assert address.client_settings()["sasl.password"] == "open sesame"
        assert "sesame" not in repr(address) + str(address)
    with pytest.raises(Usage) as raised:
        parse("kafka://alice:sesame@h")
    assert "sesame" not in str(raised.value)
    with pytest.raises(Usage) as raised:
        parse("kafka://h?user=alice&password=sesame")
    assert "sesame" not in str(raised.value)
    with pytest.raises(Usage) as raised:
        parse("alice:sesame@h?password=sesame")
    assert "sesame" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("zk://h", "not an address of topics"),
        ("h:9092", "not an address of topics"),
        ("kafka://", "not a host of topics"),
        ("kafka://h:x", "not a host of topics"),
        ("kafka://h/path", "not a host of topics"),
        ("kafka://h?prefx=a", "did you mean 'prefix'"),
        ("kafka://h?prefix=a&prefix=b", "given twice"),
        ("kafka://h?prefix=a/b", "cannot begin the name of a topic"),
        ("kafka://h?security=tls", "one of plain, ssl"),
        ("kafka://h?user=a", "password-file"),
        ("kafka://h?password-file=x", "password-file"),
        ("kafka://h?security=sasl_ssl", "does not go with the rest"),
        ("kafka://h?security=ssl&user=a&password-file=x", "does not go with the rest"),
        ("kafka://h?mechanism=PLAIN", "does not go with the rest"),
        ("kafka://h?security=sasl_ssl&user=a&password-file=x&mechanism=GSSAPI", "one of PLAIN"),
        ("kafka://h?security=plain&ca=/x", "does not go with certificates"),
        ("kafka://h?ca=/not/there", "is not a file"),
        ("kafka://h?cert=/x", "belong together"),
    ],
)
def test_a_wrong_address_says_what_is_wrong_and_how_it_is_written(text: str, says: str) -> None:
    with pytest.raises(Usage) as raised:
        parse(text)
    assert says in str(raised.value)
    assert raised.value.fix


def test_a_password_that_is_not_there_names_its_place(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for where in (
        "password-env=NO_SUCH_PASSWORD",
        f"password-file={tmp_path}/none",
        f"password-file={tmp_path}/empty",
    ):
        with pytest.raises(Usage) as raised:
            parse(f"kafka://h?user=a&{where}").client_settings()
        assert where.partition("=")[2] in str(raised.value)
        assert raised.value.fix
