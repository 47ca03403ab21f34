"""Where a table's history lies in the blob store, and how the libraries reach it.

    STORE/features/TABLE/_delta_log/...          Delta Lake's log
    STORE/features/TABLE/_day=2026-01-31/...     rows, as Parquet

Files with rows go through `holdfast.storage`, whose writes are durable when they return. polars
reads them by themselves; Delta's log is deltalake's.
"""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from holdfast.storage import Blobs, open_store
from holdfast.storage import address as addresses
from holdfast.storage.address import FolderAddress, S3Address
from holdfast.storage.objects import BLOB_CONNECT_S, BLOB_REQUEST_S, translated_error
from holdfast.wire.errors import Corrupt, Full, HoldfastError, Missing, Refused, Unavailable, Usage

TOP: Final = "features"
LOG: Final = "_delta_log"
# Tries and time of one request of a library; ours are tried again above them.
_TRIES: Final = 4
_TRIES_S: Final = 30.0
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_STATUS: Final = re.compile(r"status code[^0-9<]{1,10}(\d{3})\b")
_WHY_CHARACTERS_MAX: Final = 300


@dataclass(frozen=True)
class LakePlace:
    """Where one table's history lies. `root`: the key of its folder in the store."""

    blobs: Blobs
    address: FolderAddress | S3Address
    root: str
    delta_options: Mapping[str, str] = field(repr=False)
    polars_options: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, store: str | Path, table: str) -> LakePlace:
        """`Usage`: no history can lie in such a store."""
        address = addresses.parse(store)
        if isinstance(address, FolderAddress):
            return cls(open_store(store), address, f"{TOP}/{table}", {}, {})
        if not isinstance(address, S3Address):
            raise Usage(
                f"a history cannot lie in {address}",
                why="Delta Lake and those who read it need a folder or a bucket",
                fix="give file:DIR or s3://BUCKET/PREFIX",
            )
        if address.ca is not None:
            raise Usage(
                f"a history cannot be reached with ca= of {address}",
                why="deltalake and polars take certificates from the machine or its environment",
                fix=f"leave ca= out, and set SSL_CERT_FILE={address.ca}",
            )
        options = _s3_options(address)
        # A put that must not replace anything: what makes commits atomic there.
        delta = {
            "aws_conditional_put": "etag",
            "timeout": f"{BLOB_REQUEST_S:g}s",
            "connect_timeout": f"{BLOB_CONNECT_S:g}s",
            "max_retries": str(_TRIES),
            "retry_timeout": f"{_TRIES_S:g}s",
        }
        return cls(
            open_store(store), address, f"{TOP}/{table}", {**options, **delta}, dict(options)
        )

    @property
    def folder(self) -> Path | None:
        """The table's folder, where it is one of this machine."""
        return self.address.folder / self.root if isinstance(self.address, FolderAddress) else None

    @property
    def uri(self) -> str:
        """What deltalake, and any other reader of Delta Lake, is given."""
        if isinstance(self.address, FolderAddress):
            return str(self.address.folder / self.root)
        return f"s3://{self.address.bucket}/" + "/".join(
            filter(None, (self.address.prefix, self.root))
        )

    def __str__(self) -> str:
        return f"the history in {self.blobs.address}, {self.root}"

    def key_of(self, path: str) -> str:
        """The blob of a file that the log names."""
        return f"{self.root}/{urllib.parse.unquote(path)}"

    def uri_of(self, path: str) -> str:
        """What polars is given for it."""
        if "://" in path or path.startswith("/"):  # a table that somebody cloned names whole ones
            return path
        return f"{self.uri}/{urllib.parse.unquote(path)}"

    def translated(self, error: BaseException, what: str) -> HoldfastError:
        """Our error for one of deltalake's or of polars'."""
        # As our own store's library writes it, which the rest is made for.
        text = _STATUS.sub(r"status code: \1", " ".join(_COLOURS.sub("", str(error)).split()))
        why = text.partition(" 0: <unknown>")[0][:_WHY_CHARACTERS_MAX]
        if isinstance(self.address, S3Address) and "://" not in what and _is_remote(error, text):
            return translated_error(
                Exception(text), f"{what} in {self.blobs.address}", self.address
            )
        where = f"{what} in {self.blobs.address}"
        if isinstance(error, FileNotFoundError) or "No such file" in text:
            return Missing(f"{where}: a file of it is gone", why=why, fix=_GONE)
        if isinstance(error, PermissionError) or "ermission denied" in text:
            return Refused(f"{where}: not allowed", why=why, fix="check who may use that folder")
        if "No space left" in text or "quota exceeded" in text.lower():
            return Full(f"{where}: no room", why=why, fix="free some room on that disk")
        if isinstance(error, OSError):
            return Unavailable(f"{where}: failed", why=why, fix="check the store, then try again")
        return Corrupt(f"{where}: it cannot be read", why=why, fix=_DAMAGED)


_GONE: Final = "it was vacuumed: read a newer version, or keep versions that are needed (Lake.keep)"
_DAMAGED: Final = (
    "look at it with another reader of Delta Lake; restore its folder from a copy, or make it anew"
    " from the topic"
)


def _is_remote(error: BaseException, text: str) -> bool:
    return isinstance(error, OSError) or "Generic S3 error" in text or "object-store error" in text


def _s3_options(address: S3Address) -> dict[str, str]:
    options = {"aws_virtual_hosted_style_request": str(address.virtual_hosted).lower()}
    if address.endpoint:
        options["aws_endpoint_url"] = address.endpoint
        options["aws_allow_http"] = str(address.endpoint.startswith("http://")).lower()
    region = address.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    options["aws_region"] = region or "us-east-1"
    if address.credentials == "none":
        options["aws_skip_signature"] = "true"
    return options
