"""Addresses of online stores, from text to values. The only I/O is reading the password where the
address names it.

    valkey:/run/holdfast/valkey.sock?user=holdfast&password-file=FILE          the cluster's own
    redis://USER@HOST:PORT,HOST:PORT?password-file=FILE&ca=FILE&cluster=yes    one that people run
    cassandra://HOST,HOST?dc=eu&user=USER&password-file=FILE&ca=FILE&keyspace=NAME
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from holdfast.wire.errors import Usage

VALKEY: Final = "valkey"
REDIS: Final = "redis"
CASSANDRA: Final = "cassandra"
VERIFY: Final = ("host", "ca", "none")
# Beside other people's keys in a Redis; a Valkey of ours has no others.
REDIS_PREFIX: Final = "holdfast:"
KEYSPACE: Final = "holdfast"
PREFIX_CHARACTERS_MAX: Final = 100

_PORTS: Final = {REDIS: 6379, CASSANDRA: 9042}
_FORMS: Final = {
    VALKEY: "valkey:/PATH/TO.sock?user=NAME&password-file=FILE",
    REDIS: "redis://USER@HOST:PORT?password-file=FILE&ca=FILE, with cluster=yes for a cluster",
    CASSANDRA: "cassandra://HOST,HOST?dc=NAME&user=NAME&password-file=FILE&ca=FILE&keyspace=NAME",
}
_LOGIN: Final = ("user", "password-file", "password-env")
_FILES: Final = ("ca", "cert", "key")
_TLS: Final = ("tls", *_FILES, "verify")
_KEYS: Final = {
    VALKEY: (*_LOGIN, "prefix"),
    REDIS: (*_LOGIN, *_TLS, "cluster", "database", "prefix"),
    CASSANDRA: (*_LOGIN, *_TLS, "dc", "keyspace"),
}
# In front of keys: nothing that a pattern of keys gives a meaning to.
_PREFIX: Final = re.compile(rf"[A-Za-z0-9._:-]{{0,{PREFIX_CHARACTERS_MAX}}}")
_KEYSPACE: Final = re.compile(r"[a-z][a-z0-9_]{0,47}")


@dataclass(frozen=True)
class FeaturesAddress:
    """Where the newest rows of tables are, and who we are there.

    `engine` is "valkey" (`socket`; nobody's but the cluster's), "redis" (`hosts`; people run it,
    alone or as a cluster) or "cassandra" (`hosts`, and perhaps the data center that is near).
    `verify`: "host" checks the servers' certificates and host names, "ca" the certificates only,
    "none" nothing: the link is then open to anyone in between. A password is in a file or a
    variable that the address names; one that the process itself made is in `password`, and in no
    text of the address.
    """

    engine: str
    hosts: tuple[str, ...] = ()
    socket: Path | None = None
    user: str | None = None
    password_file: Path | None = None
    password_env: str | None = None
    password: str | None = field(default=None, repr=False, compare=False)
    encrypts: bool = False
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    verify: str = "host"
    cluster: bool = False
    database: int = 0
    prefix: str = ""
    dc: str | None = None
    keyspace: str = KEYSPACE

    @classmethod
    def parse(cls, text: str | FeaturesAddress) -> FeaturesAddress:
        """The value of an address, or `Usage` with what is wrong and how it is written."""
        if isinstance(text, FeaturesAddress):
            return text
        engine, colon, rest = text.partition(":")
        if not colon or engine not in _FORMS:
            raise Usage(
                f"not an address of feature tables: {_without_secrets(text)!r}",
                why=f"it begins with none of {', '.join(f'{one}:' for one in _FORMS)}",
                fix=f"write it as {' or '.join(_FORMS.values())}",
            )
        where, _, query = rest.partition("?")
        given = _parameters(engine, query)
        if engine == VALKEY:
            return _checked(VALKEY, given, socket=_socket(where))
        hosts, user = _hosts(engine, where)
        if user is not None:
            if "user" in given:
                raise Usage("the user is given twice in the address", fix="keep one of them")
            given["user"] = user
        return _checked(engine, given, hosts=hosts)

    def read_password(self) -> str | None:
        """What is shown there, or None; `Usage` if it cannot be read now."""
        if self.password is not None:
            return self.password
        if self.password_env is not None:
            if password := os.environ.get(self.password_env):
                return password
            raise Usage(
                f"the variable {self.password_env}, which password-env names, is not set",
                fix=f"export {self.password_env}=…",
            )
        if self.password_file is None:
            return None
        try:
            password = self.password_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Usage(
                f"the password in {self.password_file} cannot be read",
                why=str(error),
                fix="write the password into that file, readable by you alone: chmod 600",
            ) from error
        if not password:
            raise Usage(f"{self.password_file} has no password", fix="write it into that file")
        return password

    def format(self) -> str:
        """The text that `parse` reads back; it holds no password."""
        assumed_tls = any((self.ca, self.cert, self.verify != "host"))
        given = {
            "user": self.user if self.engine != REDIS else None,
            "password-file": self.password_file,
            "password-env": self.password_env,
            "tls": "yes" if self.encrypts and not assumed_tls else None,
            **{key: getattr(self, key) for key in _FILES},
            "verify": self.verify if self.verify != "host" else None,
            "cluster": "yes" if self.cluster else None,
            "database": self.database or None,
            "prefix": self.prefix if self.prefix != _default_prefix(self.engine) else None,
            "dc": self.dc,
            "keyspace": self.keyspace if self.keyspace != KEYSPACE else None,
        }
        pairs = [(key, str(value)) for key, value in given.items() if value is not None]
        query = urllib.parse.urlencode(pairs, safe="/:,[]")
        return f"{self.engine}:{self._where()}{'?' if query else ''}{query}"

    def __str__(self) -> str:
        return self.format()

    def _where(self) -> str:
        if self.engine == VALKEY:
            return urllib.parse.quote(str(self.socket), safe="/:,@")
        user = self.user if self.engine == REDIS else None
        before = f"{urllib.parse.quote(user, safe='')}@" if user is not None else ""
        return f"//{before}{','.join(self.hosts)}"

    def with_password(self, user: str, password: str) -> FeaturesAddress:
        """The same store for whoever has that password."""
        made = dataclasses.replace(self, user=user, password=password)
        return dataclasses.replace(made, password_file=None, password_env=None)

    def with_password_file(self, path: Path) -> FeaturesAddress:
        """The same, with the password in that file."""
        return dataclasses.replace(self, password_file=path, password_env=None, password=None)

    def with_ca(self, path: Path) -> FeaturesAddress:
        """The same, with the authorities' certificates in that file."""
        return dataclasses.replace(self, ca=path)


def _checked(
    engine: str,
    given: Mapping[str, str],
    *,
    hosts: tuple[str, ...] = (),
    socket: Path | None = None,
) -> FeaturesAddress:
    _check_login(engine, given)
    files = {key: Path(given[key]).expanduser().absolute() for key in _FILES if key in given}
    encrypts = _check_tls(given, files)
    address = FeaturesAddress(
        engine,
        hosts=hosts,
        socket=socket,
        user=given.get("user"),
        password_file=(
            Path(given["password-file"]).expanduser().absolute()
            if "password-file" in given
            else None
        ),
        password_env=given.get("password-env"),
        encrypts=encrypts,
        ca=files.get("ca"),
        cert=files.get("cert"),
        key=files.get("key"),
        verify=_one_of(given, "verify", VERIFY, "host"),
        cluster=_one_of(given, "cluster", ("yes", "no"), "no") == "yes",
        database=_number(given, "database"),
        prefix=_named(given, "prefix", _PREFIX, _default_prefix(engine)),
        dc=given.get("dc"),
        keyspace=_named(given, "keyspace", _KEYSPACE, KEYSPACE),
    )
    if address.cluster and address.database:
        raise Usage("a cluster has no databases", fix="leave database= out of the address")
    if engine == REDIS and len(hosts) > 1 and not address.cluster:
        raise Usage(
            f"an address of several Redis servers, and not of a cluster: {','.join(hosts)}",
            why="only a cluster says which of its servers has which keys",
            fix="write &cluster=yes, or name the one server that takes writes",
        )
    return address


def _check_login(engine: str, given: Mapping[str, str]) -> None:
    places = [key for key in ("password-file", "password-env") if key in given]
    if len(places) > 1 or ("user" in given and not places):
        raise Usage(
            "an address with a user names one place of its password",
            fix="write password-file=FILE beside the user",
        )
    # Redis has a password without a user, too: that of its user `default`.
    if engine == CASSANDRA and places and "user" not in given:
        raise Usage("the password is nobody's in the address", fix="write user=NAME beside it")


def _check_tls(given: Mapping[str, str], files: Mapping[str, Path]) -> bool:
    assumed = "yes" if files or "verify" in given else "no"
    encrypts = _one_of(given, "tls", ("yes", "no"), assumed) == "yes"
    if assumed == "yes" and not encrypts:
        raise Usage(
            "tls=no does not go with the rest of the address",
            why="ca, cert, key and verify are for TLS",
            fix="leave them out, or write tls=yes",
        )
    if ("cert" in files) != ("key" in files):
        raise Usage("cert and key belong together in an address", fix="give both, or none")
    for key, path in files.items():
        if not path.is_file():
            raise Usage(f"{key}={path} is not a file", fix="give the path of a PEM file")
    return encrypts


def _parameters(engine: str, query: str) -> dict[str, str]:
    known = _KEYS[engine]
    given: dict[str, str] = {}
    for written, value in urllib.parse.parse_qsl(query, keep_blank_values=True):
        key = written.replace("_", "-")
        if key == "password":
            raise Usage(
                "an address holds no password",
                why="addresses are printed and logged",
                fix="put it into a file, and name that: password-file=FILE",
            )
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
            raise Usage(
                f"unknown parameter {written!r} in an address of {engine}",
                why=f"known are {', '.join(known)}",
                fix=f"did you mean {near!r}?",
            )
        if key in given:
            raise Usage(f"parameter {key!r} is given twice in the address", fix="keep one of them")
        given[key] = value
    return given


def _hosts(engine: str, where: str) -> tuple[tuple[str, ...], str | None]:
    """The servers, and the user in front of them."""
    if not where.startswith("//"):
        raise Usage(
            f"not an address of {engine}: {_without_secrets(where)!r}",
            fix=f"write it as {_FORMS[engine]}",
        )
    before, at, hosts = where.removeprefix("//").rstrip("/").rpartition("@")
    if ":" in before:
        raise Usage(
            "an address holds no password",
            why="addresses are printed and logged",
            fix="put it into a file, and name that: password-file=FILE",
        )
    user = urllib.parse.unquote(before) if at else None
    return tuple(_host(engine, part) for part in hosts.split(",")), user or None


def _host(engine: str, part: str) -> str:
    try:
        split = urllib.parse.urlsplit(f"//{part.strip()}")
        host, port = split.hostname, split.port
    except ValueError:
        host, port = None, None
    if not host or split.path:
        fix = f"write the address as {_FORMS[engine]}"
        if host and engine == REDIS:
            fix = "write database=N at the end of the address"
        raise Usage(f"not a host of {engine}: {part!r}", fix=fix)
    shown = f"[{host}]" if ":" in host else host
    return f"{shown}:{port or _PORTS[engine]}"


def _socket(where: str) -> Path:
    path = Path(urllib.parse.unquote(where)).expanduser()
    if not where.strip("/") or where.startswith("//") or not path.is_absolute():
        raise Usage(
            f"not the path of a socket: {where!r}",
            why="a Valkey of ours listens on a socket in the file system, and nowhere else",
            fix=f"write it as {_FORMS[VALKEY]}; a server with a port is redis://HOST:PORT",
        )
    return path


def _one_of(given: Mapping[str, str], key: str, known: tuple[str, ...], assumed: str) -> str:
    text = given.get(key, assumed).lower()
    if text not in known:
        raise Usage(f"{key}={text} is unknown in an address", fix=f"one of {', '.join(known)}")
    return text


def _number(given: Mapping[str, str], key: str) -> int:
    text = given.get(key, "0")
    if not text.isascii() or not text.isdigit():
        raise Usage(f"{key}={text} is no number", fix=f"for example {key}=1")
    return int(text)


def _named(given: Mapping[str, str], key: str, form: re.Pattern[str], assumed: str) -> str:
    text = given.get(key, assumed)
    if not form.fullmatch(text):
        raise Usage(f"{key}={text} cannot be used", why=f"it is not of the form {form.pattern}")
    return text


def _default_prefix(engine: str) -> str:
    return REDIS_PREFIX if engine == REDIS else ""


def _without_secrets(text: str) -> str:
    """What may be shown of an address that could not be read: it may hold a secret."""
    return text.partition("?")[0].rpartition("@")[2]
