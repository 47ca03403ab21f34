"""Values that remember the marks of their last writers.

A compare-and-set whose reply was lost leaves its writer in doubt: the version went on, but by whom?
Each write adds a mark of its own to the last ones, so the writer looks for its mark. Only if more
writes than are kept came in between is there no answer.
"""

from __future__ import annotations

import json
import uuid
from typing import Any, Final, NamedTuple

from holdfast.wire.errors import Corrupt, Usage
from holdfast.wire.limits import VALUE_BYTES_MAX

# Marks of the last writes, kept beside a value: a writer whose reply was lost finds its own.
STAMPS_KEPT: Final = 64


def new_stamp() -> str:
    return uuid.uuid4().hex[:16]


class Stamped(NamedTuple):
    """A value and the marks of the last writes, the latest last."""

    value: Any
    stamps: tuple[str, ...]

    def written(self, value: Any, stamp: str) -> Stamped:
        """With another value, by the writer of `stamp`."""
        return Stamped(value, (*self.stamps, stamp)[-STAMPS_KEPT:])

    def encoded(self, path: str) -> bytes:
        try:
            record = {"value": self.value, "stamps": self.stamps}
            data = json.dumps(record, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise Usage(
                f"the value for {path} has text that is not Unicode: {error.object[:80]!a}",
                why="it came from bytes that are not UTF-8, or has half of a character",
                fix="write it as UTF-8; bytes of any other kind go into a file",
            ) from error
        except (TypeError, ValueError) as error:
            raise Usage(
                f"the value for {path} is not JSON", why=str(error), fix="use dicts, lists, text …"
            ) from error
        if len(data) > VALUE_BYTES_MAX:
            raise Usage(
                f"the value for {path} has {len(data)} bytes",
                why=f"at most {VALUE_BYTES_MAX} fit into the coordination plane",
                fix="put it into a blob, and its name here",
            )
        return data


EMPTY = Stamped(None, ())


def decoded(path: str, data: bytes) -> Stamped:
    try:
        record = json.loads(data)
        return Stamped(record["value"], tuple(record["stamps"]))
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(
            f"{path} does not hold a value of ours",
            why=f"{error!r}",
            fix="remove the node, or choose another path",
        ) from error


def happened(before_version: int, stamp: str, version: int, present: Stamped) -> bool | None:
    """Whether the write with `stamp`, upon `before_version`, was done. None: nobody can tell."""
    if stamp in present.stamps:
        return True
    return None if version - before_version > STAMPS_KEPT else False
