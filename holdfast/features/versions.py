"""Which of two rows of one key is the newer: the same everywhere, whoever asks. Pure."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from holdfast.wire.errors import Usage

_SIGN: Final = 1 << 63
_UINT64: Final = 1 << 64
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, order=True)
class RowVersion:
    """Which of two rows of one key is the newer: by the time of the event (microseconds since
    1970), then by who wrote it, then by the writer's own count."""

    at_us: int
    writer: int
    sequence: int

    def __post_init__(self) -> None:
        for name in ("at_us", "writer", "sequence"):
            if type(getattr(self, name)) is not int:  # numpy's own would wrap around
                object.__setattr__(self, name, operator.index(getattr(self, name)))
        if not (
            -_SIGN <= self.at_us < _SIGN
            and 0 <= self.writer < _UINT64
            and 0 <= self.sequence < _UINT64
        ):
            raise Usage(
                f"there is no version {self.at_us}, {self.writer}, {self.sequence}",
                why="a time is an int64, a writer and a sequence are a uint64 each",
                fix="give numbers of these types",
            )


@dataclass(frozen=True, slots=True)
class RowVersions:
    """The versions of many rows: arrays of int64, uint64 and uint64."""

    at_us: Array
    writer: Array
    sequence: Array

    @classmethod
    def of(cls, at_us: Any, writer: Any, sequence: Any) -> RowVersions:
        """Of arrays or lists; one number stands for all rows."""
        try:
            parts = np.broadcast_arrays(
                *(_whole(at_us, np.int64), _whole(writer, np.uint64)), _whole(sequence, np.uint64)
            )
        except (OverflowError, ValueError, TypeError) as error:
            raise Usage(
                "these are no versions of rows",
                why=str(error),
                fix="give an int64, a uint64 and a uint64 for each row",
            ) from error
        return cls(*parts)

    def __len__(self) -> int:
        return len(self.at_us)

    def __getitem__(self, row: int) -> RowVersion:
        return RowVersion(int(self.at_us[row]), int(self.writer[row]), int(self.sequence[row]))


def _whole(values: Any, dtype: type[np.int64 | np.uint64]) -> Array:
    """Whole numbers of a type, or `ValueError`: numpy would make others of them."""
    found = np.atleast_1d(np.asarray(values))
    if found.dtype.kind not in "iu":
        parts = np.atleast_1d(np.asarray(values, object)).ravel().tolist()
        return np.array([operator.index(part) for part in parts], dtype)
    bounds = np.iinfo(dtype)
    if found.size and not bounds.min <= int(found.min()) <= int(found.max()) <= bounds.max:
        raise ValueError(f"{found.min()} or {found.max()} is no {bounds.dtype}")
    return found.astype(dtype)
