"""Addresses of a store, from text to values. No I/O."""

from __future__ import annotations

import difflib
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.storage.keys import check_key
from holdfast.wire.errors import Usage

_FORMS: Final = "file:DIR, DIR, memory:NAME or s3://BUCKET/PREFIX?endpoint=URL&region=NAME"
_S3_KEYS: Final = ("endpoint", "region", "credentials", "virtual_hosted", "ca")
_TRUTH: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
CREDENTIALS: Final = ("environment", "instance", "none")
_SECRETS: Final = ("key", "secret", "token", "password")


@dataclass(frozen=True, slots=True)
class FolderAddress:
    """A folder of this machine, or one that all machines mount. It is made when it is not there."""

    folder: Path

    def __str__(self) -> str:
        return f"file:{self.folder}"


@dataclass(frozen=True, slots=True)
class MemoryAddress:
    """A store in this process; two that have the same name are the same."""

    name: str

    def __str__(self) -> str:
        return f"memory:{self.name}"


@dataclass(frozen=True, slots=True)
class S3Address:
    """A bucket of anything that speaks S3's protocol. Credentials are never part of an address.

    `credentials`: "environment" (the variables `AWS_...`), "instance" (the machine's own role) or
    "none" (a public bucket).
    """

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    credentials: str = "environment"
    virtual_hosted: bool = False
    ca: Path | None = None

    def __str__(self) -> str:
        where = f"s3://{self.bucket}/{self.prefix}".rstrip("/")
        return f"{where}?endpoint={self.endpoint}" if self.endpoint else where


Address = FolderAddress | MemoryAddress | S3Address


def parse(text: str | Path) -> Address:
    """The value of an address, or `Usage` with what is wrong and how it is written."""
    if isinstance(text, Path):
        return FolderAddress(text.expanduser().absolute())
    scheme, colon, rest = text.partition(":")
    if not text.strip() or (colon and not rest):
        raise Usage(f"the address {text!r} names no place", fix=f"write it as {_FORMS}")
    if not colon:
        return FolderAddress(Path(text).expanduser().absolute())
    if scheme == "file":
        return _folder(rest)
    if scheme == "memory":
        _parameters(rest.partition("?")[2], ())
        return MemoryAddress(rest)
    if scheme == "s3" and rest.startswith("//"):
        return _s3(rest[2:])
    # The rest of an unknown address is not shown: it may hold a secret.
    raise Usage(
        f"not an address of a store: {scheme}:...",
        why="it is neither a folder, nor memory:, nor s3://",
        fix=f"write it as {_FORMS}",
    )


def _folder(rest: str) -> FolderAddress:
    # `file:///data` is the usual way to write the folder /data.
    where = rest.removeprefix("//")
    return FolderAddress(Path(urllib.parse.unquote(where)).expanduser().absolute())


def _s3(rest: str) -> S3Address:
    location, _, query = rest.partition("?")
    bucket, _, prefix = location.partition("/")
    prefix = prefix.strip("/")
    if "@" in bucket:
        raise _no_secret("a user or a password before its bucket")
    if not bucket:
        raise Usage("s3:// names no bucket", fix=f"write it as {_FORMS}")
    if prefix:
        check_key(prefix)
    given = _parameters(query, _S3_KEYS)
    credentials = given.get("credentials", "environment")
    if credentials not in CREDENTIALS:
        raise Usage(f"credentials={credentials!r}", fix=f"use one of: {', '.join(CREDENTIALS)}")
    return S3Address(
        bucket=bucket,
        prefix=prefix,
        endpoint=_endpoint(given.get("endpoint")),
        region=given.get("region"),
        credentials=credentials,
        virtual_hosted=_truth(given, "virtual_hosted"),
        ca=Path(given["ca"]).expanduser().absolute() if "ca" in given else None,
    )


def _endpoint(text: str | None) -> str | None:
    if text is None:
        return None
    parts = urllib.parse.urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Usage(
            "the endpoint of the address is not a URL", fix="write it as endpoint=https://HOST:PORT"
        )
    if parts.username is not None or parts.password is not None or parts.query:
        raise _no_secret("a user, a password or parameters within its endpoint")
    return text.rstrip("/")


def _parameters(query: str, known: Sequence[str]) -> Mapping[str, str]:
    given: dict[str, str] = {}
    for key, value in urllib.parse.parse_qsl(query, keep_blank_values=True):
        if key not in known:
            if any(word in key.lower() for word in _SECRETS):
                raise _no_secret(f"credentials ({key})")
            raise Usage(
                f"unknown parameter {key!r} in the address",
                why=f"known are {', '.join(known)}" if known else "this form takes none",
                fix=f"did you mean {difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]!r}?"
                if known
                else "leave it away",
            )
        if key in given:
            raise Usage(f"parameter {key!r} is given twice in the address", fix="keep one of them")
        given[key] = value
    return given


def _truth(given: Mapping[str, str], key: str) -> bool:
    text = given.get(key, "false").lower()
    if text not in _TRUTH:
        raise Usage(f"{key}={given[key]!r} in the address", fix=f"write {key}=true or {key}=false")
    return _TRUTH[text]


def _no_secret(what: str) -> Usage:
    return Usage(
        f"an address of a store does not hold {what}",
        why="addresses are printed and logged",
        fix="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment",
    )
