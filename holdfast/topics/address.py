"""Addresses of topics, from text to values and to what the Kafka client is told. The only I/O is
reading the password where the address names it."""

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

DEFAULT_PORT: Final = 9092
# Topic names have at most 249 characters; a prefix leaves room for a name.
PREFIX_CHARACTERS_MAX: Final = 100
SECURITIES: Final = ("plain", "ssl", "sasl_plain", "sasl_ssl")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
VERIFY: Final = ("host", "ca", "none")

_PROTOCOLS: Final = {
    "plain": "PLAINTEXT",
    "ssl": "SSL",
    "sasl_plain": "SASL_PLAINTEXT",
    "sasl_ssl": "SASL_SSL",
}
_FORM: Final = "kafka://HOST:PORT,HOST:PORT?security=sasl_ssl&user=NAME&password-file=FILE&ca=FILE&prefix=team."
_KEYS: Final = (
    *("security", "mechanism", "user", "password-file", "password-env"),
    *("ca", "cert", "key", "verify", "prefix"),
)
_PREFIX: Final = re.compile(rf"[A-Za-z0-9._-]{{0,{PREFIX_CHARACTERS_MAX}}}")


@dataclass(frozen=True)
class TopicsAddress:
    """Where topics are, who we are there, and what their names begin with.

    `verify`: "host" checks the servers' certificates and host names, "ca" the certificates only,
    "none" nothing: the link is then open to anyone in between. A password is in a file or a
    variable that the address names; one that the process itself made is in `password`, and in no
    text of the address. So is an authority's certificate that it made, in `ca_pem`.
    """

    servers: tuple[str, ...]
    security: str = "plain"
    mechanism: str = "SCRAM-SHA-512"
    user: str | None = None
    password_file: Path | None = None
    password_env: str | None = None
    password: str | None = field(default=None, repr=False, compare=False)
    ca: Path | None = None
    ca_pem: str | None = field(default=None, repr=False, compare=False)
    cert: Path | None = None
    key: Path | None = None
    verify: str = "host"
    prefix: str = ""

    @classmethod
    def parse(cls, text: str | TopicsAddress) -> TopicsAddress:
        """The value of an address, or `Usage` with what is wrong and how it is written."""
        if isinstance(text, TopicsAddress):
            return text
        scheme, colon, rest = text.partition("://")
        if not colon or scheme != "kafka":
            raise Usage(
                f"not an address of topics: {_without_query(text)!r}",
                why="it does not begin with kafka://",
                fix=f"write it as {_FORM}",
            )
        hosts, _, query = rest.partition("?")
        hosts = hosts.rstrip("/")
        if "@" in hosts:
            raise Usage(
                "an address holds no user and no password before its hosts",
                why="addresses are printed and logged",
                fix="write ?user=NAME&password-file=FILE",
            )
        servers = tuple(_server(part) for part in hosts.split(","))
        return _checked(servers, _parameters(query))

    @property
    def encrypts(self) -> bool:
        return self.security in ("ssl", "sasl_ssl")

    @property
    def logs_in(self) -> bool:
        return self.security in ("sasl_plain", "sasl_ssl")

    def full_name(self, name: str) -> str:
        """What a topic, group or transactional id of ours is called on the wire."""
        return self.prefix + name

    def own_name(self, full: str) -> str | None:
        """What we call it; None: it is not below our prefix."""
        return full.removeprefix(self.prefix) if full.startswith(self.prefix) else None

    def client_settings(self) -> dict[str, str | bool]:
        """What confluent-kafka is told, with the password; `Usage` if that cannot be read now."""
        settings: dict[str, str | bool] = {
            "bootstrap.servers": ",".join(self.servers),
            "security.protocol": _PROTOCOLS[self.security],
        }
        if len(self.servers) == 1:
            # When its only server is away, librdkafka (2.16) forgets it and begins anew, and what
            # still waits for the forgotten one waits for ever: a transaction that commits a group's
            # offsets, for example. tests/proofs/topics showed it.
            settings["metadata.recovery.strategy"] = "none"
        if self.logs_in:
            settings["sasl.mechanism"] = self.mechanism
            settings["sasl.username"] = self.user or ""
            settings["sasl.password"] = self._password()
        if self.encrypts:
            for name, path in (
                ("ssl.ca.location", self.ca),
                ("ssl.certificate.location", self.cert),
                ("ssl.key.location", self.key),
            ):
                if path is not None:
                    settings[name] = str(path)
            if self.ca_pem is not None:
                settings["ssl.ca.pem"] = self.ca_pem
            # Said either way: the default differs between versions of librdkafka.
            host = "https" if self.verify == "host" else "none"
            settings["ssl.endpoint.identification.algorithm"] = host
            settings["enable.ssl.certificate.verification"] = self.verify != "none"
        return settings

    def format(self) -> str:
        """The text that `parse` reads back; it holds no password."""
        given = {
            "security": self.security if self.security != "plain" else None,
            "mechanism": self.mechanism if self.logs_in else None,
            "user": self.user,
            "password-file": self.password_file,
            "password-env": self.password_env,
            "ca": self.ca,
            "cert": self.cert,
            "key": self.key,
            "verify": self.verify if self.verify != "host" else None,
            "prefix": self.prefix or None,
        }
        pairs = [(key, str(value)) for key, value in given.items() if value is not None]
        query = urllib.parse.urlencode(pairs, safe="/:,[]")
        return f"kafka://{','.join(self.servers)}{'?' if query else ''}{query}"

    def __str__(self) -> str:
        return self.format()

    def with_password(
        self, user: str, password: str, *, ca_pem: str | None = None
    ) -> TopicsAddress:
        """The same servers for whoever has that password."""
        security = "sasl_ssl" if self.encrypts else "sasl_plain"
        made = dataclasses.replace(
            self, security=security, user=user, password=password, ca_pem=ca_pem
        )
        return dataclasses.replace(made, password_file=None, password_env=None)

    def with_files(self, password: Path | None, ca: Path | None) -> TopicsAddress:
        """The same, with what it needs in these files; what is None stays as it is."""
        made = self
        if password is not None:
            made = dataclasses.replace(
                made, password_file=password, password_env=None, password=None
            )
        return made if ca is None else dataclasses.replace(made, ca=ca, ca_pem=None)

    def _password(self) -> str:
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
            raise Usage(
                f"there is no password for the user {self.user} of {self}",
                fix="name a file that has it: password-file=FILE",
            )
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


def _checked(servers: tuple[str, ...], given: Mapping[str, str]) -> TopicsAddress:
    paths = {key: _path(given[key]) for key in ("ca", "cert", "key") if key in given}
    user = given.get("user")
    named = [key for key in ("password-file", "password-env") if key in given]
    if (user is not None) != (len(named) == 1):
        raise Usage(
            "an address with a user names one place of its password, and without one none",
            fix="write ?user=NAME&password-file=FILE",
        )
    if ("cert" in paths) != ("key" in paths):
        raise Usage("cert and key belong together in an address", fix="give both, or none")
    assumed = "sasl_ssl" if user is not None else "ssl" if paths or "verify" in given else "plain"
    security = _one_of(given, "security", SECURITIES, assumed)
    address = TopicsAddress(
        servers=servers,
        security=security,
        mechanism=_one_of(given, "mechanism", MECHANISMS, "SCRAM-SHA-512"),
        user=user,
        password_file=_path(given["password-file"]) if "password-file" in given else None,
        password_env=given.get("password-env"),
        ca=paths.get("ca"),
        cert=paths.get("cert"),
        key=paths.get("key"),
        verify=_one_of(given, "verify", VERIFY, "host"),
        prefix=_prefix(given.get("prefix", "")),
    )
    if address.logs_in != (user is not None) or ("mechanism" in given and not address.logs_in):
        raise Usage(
            f"security={security} does not go with the rest of the address",
            why="a user and a mechanism are for sasl_plain and sasl_ssl, which need them",
            fix=f"write it as {_FORM}",
        )
    if not address.encrypts and (paths or "verify" in given):
        raise Usage(
            f"security={security} does not go with certificates",
            why="ca, cert, key and verify are for ssl and sasl_ssl",
            fix="leave them out, or write security=sasl_ssl (or ssl)",
        )
    for key, path in paths.items():
        if not path.is_file():
            raise Usage(f"{key}={path} is not a file", fix="give the path of a PEM file")
    return address


def _parameters(query: str) -> Mapping[str, str]:
    given: dict[str, str] = {}
    for written, value in urllib.parse.parse_qsl(query, keep_blank_values=True):
        key = written.replace("_", "-")
        if key == "password":
            raise Usage(
                "an address holds no password",
                why="addresses are printed and logged",
                fix="put it into a file, and name that: password-file=FILE",
            )
        if key not in _KEYS:
            near = difflib.get_close_matches(key, _KEYS, n=1, cutoff=0.0)[0]
            raise Usage(
                f"unknown parameter {written!r} in the address",
                why=f"known are {', '.join(_KEYS)}",
                fix=f"did you mean {near!r}?",
            )
        if key in given:
            raise Usage(f"parameter {key!r} is given twice in the address", fix="keep one of them")
        given[key] = value
    return given


def _one_of(given: Mapping[str, str], key: str, known: tuple[str, ...], assumed: str) -> str:
    text = given.get(key)
    if text is None:
        return assumed
    for one in known:
        if text.lower() == one.lower():
            return one
    raise Usage(f"{key}={text} is unknown in an address", fix=f"one of {', '.join(known)}")


def _server(part: str) -> str:
    try:
        split = urllib.parse.urlsplit(f"//{part.strip()}")
        host, port = split.hostname, split.port
    except ValueError:
        host, port = None, None
    if not host or split.path:
        raise Usage(f"not a host of topics: {part!r}", fix=f"write the address as {_FORM}")
    return f"[{host}]:{port or DEFAULT_PORT}" if ":" in host else f"{host}:{port or DEFAULT_PORT}"


def _prefix(text: str) -> str:
    if not _PREFIX.fullmatch(text):
        raise Usage(
            f"prefix={text} cannot begin the name of a topic",
            why=f"it has letters, digits, '.', '_' and '-', at most {PREFIX_CHARACTERS_MAX}",
            fix="for example prefix=team.",
        )
    return text


def _path(text: str) -> Path:
    return Path(text).expanduser().absolute()


def _without_query(text: str) -> str:
    """What may be shown of an address that could not be read: its query may hold a secret."""
    return text.partition("?")[0].rpartition("@")[2]
