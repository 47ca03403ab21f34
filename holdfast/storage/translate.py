"""From obstore's errors to ours. Nothing of the credentials is ever passed on."""

from __future__ import annotations

import os
import re
from typing import Final

from holdfast.storage.address import S3Address
from holdfast.wire.errors import Full, HoldfastError, Missing, Refused, Unavailable

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>([^<]{1,100})</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]{1,300})</Message>")
_SECRETS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
# Answers that may be different the next time.
_LATER: Final = (408, 409, 425, 429)
_NO_ROOM: Final = ("XMinioStorageFull", "QuotaExceeded", "InsufficientStorage")
_WHY_CHARACTERS_MAX: Final = 300


def translated(error: Exception, what: str, address: S3Address) -> HoldfastError:
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
