"""Addresses of a coordination plane, from text to values. No I/O but reading the named variable."""

from __future__ import annotations

import difflib
import os
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from holdfast.system.listening import is_loopback
from holdfast.wire.errors import Usage
from holdfast.wire.limits import SESSION_TIMEOUT_S, TICK_MS

# An embedded server that nobody uses ends after this; long enough for a script's next run.
LINGER_S: Final = 30.0

DEFAULT_PORT = 2181
_FORMS = "embedded:DIR or zk://h1:2181,h2,h3/chroot?timeout_s=10"
_EMBEDDED_KEYS = ("timeout_s", "linger_s", "tick_ms", "listen", "network", "secret_file")
_ZOOKEEPER_KEYS = (
    *("timeout_s", "secret_file", "user", "password_env"),
    *("tls", "ca", "cert", "key", "verify", "owner"),
)
SECRET = "secret"  # noqa: S105 (how certificates are checked)
TRUSTED = "trusted"
_VERIFY = ("host", "ca", "none", SECRET)
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True)
class EmbeddedAddress:
    """The server over a folder on this machine; it is started when nobody has."""

    folder: Path
    timeout_s: float = SESSION_TIMEOUT_S
    linger_s: float = LINGER_S
    tick_ms: int = TICK_MS
    listen: str = "127.0.0.1:0"  # where the server listens when it is started
    network: str = ""  # "trusted": it speaks plain text also to other machines
    secret_file: Path | None = None  # who we are there; None: its own, in the folder

    @property
    def encrypts(self) -> bool:
        """Whether the server speaks TLS: where other machines reach it, unless it was told that
        nobody else has access to their network."""
        host = self.listen.rpartition(":")[0]
        # A port alone is on loopback.
        return self.network != TRUSTED and host != "" and not is_loopback(host)

    def __str__(self) -> str:
        return f"embedded:{self.folder}"


@dataclass(frozen=True)
class TLS:
    """How the servers are verified and what we show them.

    `verify`: "host" checks the certificate and the host's name, "ca" the certificate only, "none"
    nothing: the link is then open to anyone in between. "secret": both sides show certificates that
    only the plane's secret makes (`holdfast.coordination.tls`).
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    verify: str = "host"


@dataclass(frozen=True)
class ZooKeeperAddress:
    """A ZooKeeper ensemble, or one server of ours, by address."""

    hosts: tuple[tuple[str, int], ...]
    chroot: str = ""
    timeout_s: float = SESSION_TIMEOUT_S
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    secret_file: Path | None = None  # who we are there; None: nobody in particular
    tls: TLS | None = None
    owner: int | None = None  # whose process it has to be, on this machine; None: anybody's

    @property
    def host_list(self) -> str:
        """As kazoo wants it."""
        return ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts
        )

    def __str__(self) -> str:
        return f"zk://{self.host_list}{self.chroot}"


Address = EmbeddedAddress | ZooKeeperAddress


def parse(text: str) -> Address:
    """The value of an address, or `Usage` with what is wrong and how it is written."""
    scheme, colon, rest = text.partition(":")
    if colon and scheme == "embedded":
        return _embedded(rest)
    if colon and scheme == "zk" and rest.startswith("//"):
        return _zookeeper(rest[2:])
    raise Usage(
        f"not an address of a coordination plane: {_without_query(text)!r}",
        why="it begins neither with embedded: nor with zk://",
        fix=f"write it as {_FORMS}",
    )


def with_secret_file(text: str, path: Path) -> str:
    """The same address for whoever has only that file: no other credentials are in it."""
    where, _, query = text.partition("?")
    kept = [
        (key, value)
        for key, value in urllib.parse.parse_qsl(query, keep_blank_values=True)
        if key not in ("secret_file", "user", "password_env")
    ]
    return f"{where}?{urllib.parse.urlencode([*kept, ('secret_file', str(path))], safe='/:,[]')}"


def checked_network(text: str) -> str:
    """What is said of the network between machines: nothing, or that it is trusted."""
    if text not in ("", TRUSTED):
        raise Usage(f"the network is {TRUSTED}, or nothing is said of it", why=f"not {text!r}")
    return text


def _embedded(rest: str) -> EmbeddedAddress:
    where, _, query = rest.partition("?")
    if not where:
        raise Usage("embedded: names no folder", fix="write it as embedded:DIR")
    given = _parameters(query, _EMBEDDED_KEYS)
    return EmbeddedAddress(
        folder=Path(where).expanduser().absolute(),
        timeout_s=_seconds(given, "timeout_s", SESSION_TIMEOUT_S),
        linger_s=_seconds(given, "linger_s", LINGER_S),
        tick_ms=int(_seconds(given, "tick_ms", TICK_MS)),
        listen=given.get("listen", EmbeddedAddress.listen),
        network=checked_network(given.get("network", "")),
        secret_file=_secret_file(given),
    )


def _zookeeper(rest: str) -> ZooKeeperAddress:
    location, _, query = rest.partition("?")
    host_text, slash, chroot = location.partition("/")
    given = _parameters(query, _ZOOKEEPER_KEYS)
    if "@" in host_text:
        raise Usage(
            "an address holds no user and no password before its hosts",
            why="addresses are printed and logged",
            fix="write ?user=NAME&password_env=VARIABLE, and put the password into that variable",
        )
    return ZooKeeperAddress(
        hosts=tuple(_host(part) for part in host_text.split(",")),
        chroot=_chroot(chroot) if slash else "",
        timeout_s=_seconds(given, "timeout_s", SESSION_TIMEOUT_S),
        user=given.get("user"),
        password=_password(given),
        secret_file=_secret_file(given),
        tls=_tls(given),
        owner=_owner(given),
    )


def _parameters(query: str, known: Sequence[str]) -> Mapping[str, str]:
    given: dict[str, str] = {}
    for key, value in urllib.parse.parse_qsl(query, keep_blank_values=True):
        if key == "password":
            raise Usage(
                "an address holds no password",
                why="addresses are printed and logged",
                fix="put it into a variable, and name that: password_env=VARIABLE",
            )
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
            raise Usage(
                f"unknown parameter {key!r} in the address",
                why=f"known are {', '.join(known)}",
                fix=f"did you mean {near!r}?",
            )
        if key in given:
            raise Usage(f"parameter {key!r} is given twice in the address", fix="keep one of them")
        given[key] = value
    return given


def _seconds(given: Mapping[str, str], key: str, default: float) -> float:
    text = given.get(key)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e6:
        raise Usage(f"{key}={text} is not a positive number", fix=f"for example {key}={default:g}")
    return value


def _host(part: str) -> tuple[str, int]:
    try:
        split = urllib.parse.urlsplit(f"//{part.strip()}")
        host, port = split.hostname, split.port
    except ValueError:
        host, port = None, None
    if not host:
        raise Usage(f"not a host: {part!r}", fix=f"write the address as {_FORMS}")
    return host, port or DEFAULT_PORT


def _chroot(text: str) -> str:
    parts = [part for part in text.split("/") if part]
    if any(part in (".", "..") for part in parts):
        raise Usage(f"the chroot /{text} has a relative part", fix="write it in full")
    return "".join(f"/{part}" for part in parts)


def _password(given: Mapping[str, str]) -> str | None:
    name = given.get("password_env")
    if (name is None) != (given.get("user") is None):
        raise Usage(
            "user and password_env belong together in an address",
            fix="write ?user=NAME&password_env=VARIABLE",
        )
    if name is None:
        return None
    password = os.environ.get(name)
    if not password:
        raise Usage(
            f"the variable {name}, which password_env names, is not set",
            fix=f"export {name}=…",
        )
    return password


def _secret_file(given: Mapping[str, str]) -> Path | None:
    named = given.get("secret_file")
    if named is not None and "user" in given:
        raise Usage(
            "an address has a secret_file or a user, not both",
            why="each of them says who connects",
            fix="keep one of them",
        )
    return None if named is None else Path(named).expanduser().absolute()


def _owner(given: Mapping[str, str]) -> int | None:
    text = given.get("owner")
    if text is not None and not text.isdigit():
        raise Usage(f"owner={text} is not the number of a user", fix="for example owner=1000")
    return None if text is None else int(text)


def _tls(given: Mapping[str, str]) -> TLS | None:
    files = {key: Path(given[key]).expanduser() for key in ("ca", "cert", "key") if key in given}
    wanted = given.get("tls", "true" if files or "verify" in given else "false").lower()
    if wanted not in _TRUTH:
        raise Usage(f"tls={wanted} is neither true nor false", fix="write tls=true")
    if not _TRUTH[wanted]:
        return None
    verify = given.get("verify", "host")
    if verify not in _VERIFY:
        raise Usage(f"verify={verify} is unknown", fix=f"one of {', '.join(_VERIFY)}")
    if verify == SECRET and (files or "user" in given):
        raise Usage(
            "verify=secret stands without ca, cert, key and user in an address",
            why="the certificates are made from the plane's secret",
            fix="leave them out, and name the secret: secret_file=FILE",
        )
    if ("cert" in files) != ("key" in files):
        raise Usage("cert and key belong together in an address", fix="give both, or none")
    for key, path in files.items():
        if not path.is_file():
            raise Usage(f"{key}={path} is not a file", fix="give the path of a PEM file")
    return TLS(files.get("ca"), files.get("cert"), files.get("key"), verify)


def _without_query(text: str) -> str:
    """What may be shown of an address that could not be read: its query may hold a secret."""
    return text.partition("?")[0].rpartition("@")[2]
