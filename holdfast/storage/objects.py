"""A store of objects (S3 and all that speak its protocol), through obstore.

obstore is imported when the first call is made: it brings threads of its own, and a process that
forks after that leaves them behind. A forked child that calls is told so; without that check it
would wait for ever.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeVar, cast

from holdfast.storage.address import S3Address
from holdfast.storage.backend import Listed
from holdfast.storage.deadline import TransferDeadline
from holdfast.storage.sources import MeteredSource
from holdfast.system.extras import require_extra
from holdfast.wire.errors import Full, HoldfastError, Missing, Refused, Unavailable, Usage
from holdfast.wire.limits import BLOB_BYTES_PER_S_MIN, BLOB_CALL_S, BLOB_CHUNK_BYTES

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Config, S3Store

# Larger blobs go to an object store in several requests of this size. With S3's limit of 10,000
# requests an upload, and this size, 156 GiB would be the end.
BLOB_MULTIPART_BYTES: Final = 16 * 1024 * 1024
# Requests of one upload at a time; each holds a piece in memory.
BLOB_PIECES_IN_FLIGHT: Final = 4
# One small request to an object store; also the longest silence within a large one.
BLOB_REQUEST_S: Final = 20.0
BLOB_CONNECT_S: Final = 5.0
# Keys that a listing holds in memory at a time: what S3 gives in one answer.
BLOB_LIST_PAGE: Final = 1_000

T = TypeVar("T")
PROBES: Final = "holdfast-probes"
# Retries of single pieces of a large upload or download; a small request is retried by our caller.
_PIECE_RETRIES: Final = 4
_GIVES_CREDENTIALS: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
# The process in which obstore's threads are; 0 before the first call.
_threads_in = 0
_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>([^<]{1,100})</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]{1,300})</Message>")
_SECRETS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
# Answers that may be different the next time.
_LATER: Final = (408, 409, 425, 429)
_NO_ROOM: Final = ("XMinioStorageFull", "QuotaExceeded", "InsufficientStorage")
_WHY_CHARACTERS_MAX: Final = 300


class RequestKind(Enum):
    """What a request is for; each has its own time limits and retries."""

    SMALL = "small"
    UPLOAD = "upload"
    DOWNLOAD = "download"


class ObjectBackend:
    """Blobs as objects of a bucket."""

    def __init__(self, address: S3Address) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._stores: dict[RequestKind, S3Store] = {}
        self._bucket_seen = False
        self._creates: bool | None = None

    def describe(self) -> str:
        return str(self._address)

    def put(self, key: str, chunks: MeteredSource, deadline: TransferDeadline) -> None:
        pieces = _regrouped(chunks, BLOB_MULTIPART_BYTES)
        first = next(pieces, b"")
        second = next(pieces, None)
        if second is None:
            self._put_one(key, first, create=False)
            return

        def all_pieces() -> Iterator[bytes]:
            yield first
            yield second
            yield from pieces

        # What the source itself raises comes back as it is; the upload is then given up.
        self._call(
            f"writing {key!r}",
            lambda obstore: obstore.put(
                self._store(RequestKind.UPLOAD),
                key,
                all_pieces(),
                use_multipart=True,
                chunk_size=BLOB_MULTIPART_BYTES,
                max_concurrency=BLOB_PIECES_IN_FLIGHT,
            ),
        )

    def put_if_absent(self, key: str, chunks: MeteredSource, deadline: TransferDeadline) -> bool:
        gathered = bytearray()
        for chunk in chunks:
            gathered += chunk
            if len(gathered) > BLOB_MULTIPART_BYTES:
                raise Full(
                    f"{key!r} is too large to be written only if it is absent",
                    why=f"this is one request, of at most {BLOB_MULTIPART_BYTES} bytes",
                    fix="name it by its content and use put_part",
                )
        if not self._keeps_the_first():
            raise Refused(
                f"{self.describe()} cannot write a blob only if it is absent",
                why="it ignored `If-None-Match: *` and replaced the first of two writes",
                fix="use a store that has conditional writes, or a folder",
            )
        return self._put_one(key, bytes(gathered), create=True)

    def open(
        self, key: str, deadline: TransferDeadline, piece_bytes: int = BLOB_CHUNK_BYTES
    ) -> tuple[int, Iterator[bytes]]:
        what = f"reading {key!r}"
        try:
            result = self._call(
                what, lambda obstore: obstore.get(self._store(RequestKind.DOWNLOAD), key)
            )
        except Missing:
            self._check_bucket()
            raise
        size_bytes = int(result.meta["size"])
        stream = iter(result.stream(min_chunk_size=piece_bytes)) if size_bytes else iter(())

        def pieces() -> Iterator[bytes]:
            while (piece := self._call(what, lambda _: next(stream, None))) is not None:
                # What comes may be larger than we have asked for.
                whole = memoryview(piece)
                for start in range(0, whole.nbytes, piece_bytes):
                    yield bytes(whole[start : start + piece_bytes])

        return size_bytes, pieces()

    def stat(self, key: str) -> Listed | None:
        try:
            found = self._call(
                f"looking at {key!r}", lambda obstore: obstore.head(self._store(), key)
            )
        except Missing:
            self._check_bucket()
            return None
        return Listed(key, found["size"], found["last_modified"].timestamp())

    def confirm(self, key: str) -> None:
        """A store of objects shows nothing that is not durable."""

    def list(self, prefix: str, after: str) -> Iterator[Listed]:
        what = f"listing {prefix!r}"
        pages = self._call(
            what,
            lambda obstore: iter(
                obstore.list(
                    self._store(), prefix or None, offset=after or None, chunk_size=BLOB_LIST_PAGE
                )
            ),
        )
        while (page := self._call(what, lambda _: next(pages, None))) is not None:
            for found in page:
                # Some servers ignore where a listing is to start.
                if found["path"] > after and not found["path"].startswith(f"{PROBES}/"):
                    yield Listed(found["path"], found["size"], found["last_modified"].timestamp())

    def delete(self, key: str) -> None:
        try:
            self._call(f"deleting {key!r}", lambda obstore: obstore.delete(self._store(), key))
        except Missing:
            return

    def delete_unless_newer(self, key: str, than_s: float, deadline: TransferDeadline) -> bool:
        # Two requests: S3 through obstore has no conditional delete. docs/decisions/0005 says what
        # this leaves open, and why the time between marking and removing covers it.
        found = self.stat(key)
        if found is not None and found.modified_s > than_s:
            return False
        self.delete(key)
        return True

    def tidy(self) -> int:
        return 0

    # --- below ------------------------------------------------------------------------------

    def _put_one(self, key: str, data: bytes, *, create: bool) -> bool:
        """One request; False when it should create the blob, and there was one."""
        kind = RequestKind.UPLOAD if len(data) > BLOB_CHUNK_BYTES else RequestKind.SMALL

        def put(obstore: Obstore) -> bool:
            try:
                obstore.put(
                    self._store(kind),
                    key,
                    data,
                    mode="create" if create else "overwrite",
                    use_multipart=False,
                )
            except obstore.exceptions.AlreadyExistsError:
                return False
            return True

        return self._call(f"writing {key!r}", put)

    def _keeps_the_first(self) -> bool:
        """Whether the store refuses the second of two conditional writes; asked once."""
        if self._creates is None:
            key = f"{PROBES}/{secrets.token_hex(8)}"
            try:
                self._put_one(key, b"first", create=True)
                self._creates = not self._put_one(key, b"second", create=True)
            finally:
                self.delete(key)
        return self._creates

    def _check_bucket(self) -> None:
        """`Refused` when it is the bucket that is missing: a HEAD's answer does not say."""
        if not self._bucket_seen:
            next(iter(self.list("", "")), None)
            self._bucket_seen = True

    def _call(self, what: str, action: Callable[[Obstore], T]) -> T:
        obstore = self._obstore()
        try:
            return action(obstore)
        except (FileNotFoundError, obstore.exceptions.BaseError) as error:
            raise translated_error(error, f"{what} in {self.describe()}", self._address) from None

    def _obstore(self) -> Obstore:
        global _threads_in  # noqa: PLW0603  one for the process, as obstore's threads are
        if _threads_in not in (0, os.getpid()):
            raise Usage(
                "this process was forked from one that uses an object store",
                why="the threads of obstore stay behind in the parent, and a call would never end",
                fix="start processes with the method 'spawn', or fork before the first call",
            )
        obstore = cast("Obstore", require_extra("obstore", "s3"))
        _threads_in = os.getpid()
        return obstore

    def _store(self, kind: RequestKind = RequestKind.SMALL) -> S3Store:
        with self._lock:
            if kind not in self._stores:
                self._stores[kind] = self._made(kind)
            return self._stores[kind]

    def _made(self, kind: RequestKind) -> S3Store:
        address = self._address
        if address.credentials == "environment" and not any(
            os.environ.get(name) for name in _GIVES_CREDENTIALS
        ):
            raise credentials_missing(self.describe())
        config: S3Config = {"virtual_hosted_style_request": address.virtual_hosted}
        if address.endpoint:
            config["endpoint"] = address.endpoint
        if address.region:
            config["region"] = address.region
        if address.credentials == "none":
            config["skip_signature"] = True
        store_module = require_extra("obstore.store", "s3")
        store = store_module.S3Store(
            address.bucket,
            prefix=address.prefix or None,
            config=config,
            client_options=_client_options(address, kind),
            retry_config={
                "max_retries": 0 if kind is RequestKind.SMALL else _PIECE_RETRIES,
                "retry_timeout": timedelta(seconds=BLOB_CALL_S),
            },
        )
        return cast("S3Store", store)


if TYPE_CHECKING:
    import obstore as obstore_module

    class Obstore:
        """The module, with the types of what we call."""

        put = staticmethod(obstore_module.put)
        get = staticmethod(obstore_module.get)
        head = staticmethod(obstore_module.head)
        list = staticmethod(obstore_module.list)
        delete = staticmethod(obstore_module.delete)
        exceptions = obstore_module.exceptions


def _client_options(address: S3Address, kind: RequestKind) -> ClientConfig:
    silence_s = BLOB_REQUEST_S
    if kind is RequestKind.UPLOAD:
        # The answer comes after the last byte, and all pieces that are on their way share the link.
        silence_s += BLOB_PIECES_IN_FLIGHT * BLOB_MULTIPART_BYTES / BLOB_BYTES_PER_S_MIN
    options: ClientConfig = {
        "connect_timeout": timedelta(seconds=BLOB_CONNECT_S),
        "read_timeout": timedelta(seconds=silence_s),
        # A large transfer is bounded by its silence and, between pieces, by the caller's deadline.
        "timeout": timedelta(seconds=BLOB_REQUEST_S)
        if kind is RequestKind.SMALL
        else timedelta(hours=24),
        "allow_http": (address.endpoint or "").startswith("http://"),
    }
    if address.ca is not None:
        try:
            options["root_certificate"] = address.ca.read_bytes()
        except OSError as error:
            raise Usage(
                f"the certificate {address.ca} cannot be read", why=str(error), fix="check ca=FILE"
            ) from error
    return options


def _regrouped(chunks: MeteredSource, size_bytes: int) -> Iterator[bytes]:
    """The same bytes in pieces of one size; the last may be shorter."""
    gathered = bytearray()
    for chunk in chunks:
        gathered += chunk
        while len(gathered) >= size_bytes:
            yield bytes(memoryview(gathered)[:size_bytes])
            del gathered[:size_bytes]
    if gathered:
        yield bytes(gathered)


def translated_error(error: Exception, what: str, address: S3Address) -> HoldfastError:
    """Our error for one of obstore's: whether to try again, and what to check."""
    # What follows is the same error once more, for Rust programmers.
    text = str(error).partition("Debug source:")[0].strip()
    found = _STATUS.search(text)
    status = int(found[1]) if found else None
    code = _first(_CODE, text)
    why = _without_secrets(_sentence(text, code))
    if code == "NoSuchBucket":
        return bucket_missing(what, address)
    if code == "NoSuchUpload":
        # A server that was restarted does not know what was uploaded in pieces before.
        return Unavailable(f"{what}: the store forgot the upload", why=why, fix="try again")
    if isinstance(error, FileNotFoundError):
        return Missing(f"{what}: there is no such blob")
    if code in _NO_ROOM or status == 507:
        return Full(f"{what}: no room", why=why, fix="free some room in the bucket")
    if status in (401, 403):
        return Refused(
            f"{what}: access denied",
            why=why,
            fix="check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN), the"
            f" machine's clock, and that they may use the bucket {address.bucket!r}",
        )
    if status is not None and 300 <= status < 500 and status not in _LATER:
        return Refused(
            f"{what}: refused ({status})", why=why, fix="check endpoint= and region= of the address"
        )
    return Unavailable(
        f"{what}: no answer",
        why=why,
        fix=f"check that {address.endpoint or 'S3'} can be reached, then try again",
    )


def bucket_missing(what: str, address: S3Address) -> Refused:
    return Refused(
        f"{what}: there is no bucket {address.bucket!r}",
        why="a bucket has to be made first, with its own settings and permissions",
        fix=f"make it (aws s3 mb s3://{address.bucket}), or check endpoint= and the bucket's name",
    )


def credentials_missing(where: str) -> Refused:
    return Refused(
        f"no credentials for {where}",
        why="neither AWS_ACCESS_KEY_ID nor another variable that gives credentials is set",
        fix="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or add credentials=instance (the"
        " machine's role) or credentials=none (a public bucket) to the address",
    )


def _sentence(text: str, code: str) -> str:
    if code:
        message = _first(_MESSAGE, text)
        return f"{code}: {message}" if message else code
    return " ".join(text.split())


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""


def _without_secrets(text: str) -> str:
    for name in _SECRETS:
        value = os.environ.get(name)
        if value:
            text = text.replace(value, "***")
    return text[:_WHY_CHARACTERS_MAX]
