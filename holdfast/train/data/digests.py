"""Data that rots: digests of files and of samples, checked when they are read.

    sums = train.digests_of(dataset)                     # once, when the data is known to be good
    run.batches(train.checked(dataset, sums), ...)       # a sample that is another stops the job

    sums = train.digests_of(train.Sharded(files, read=read))
    run.batches(train.Sharded(files, read=read, digests=sums), ...)

What is wrong is named: the file or the number of the sample, what was expected and what was found.
It is not tried again: the next worker would read the same.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import torch

from holdfast.wire.errors import Corrupt, Usage

_PIECE_BYTES: Final = 1024 * 1024


class Damaged(Corrupt):
    """Data is not what it was when its digest was made: the job cannot go on with it."""


def open_path(path: Any) -> BinaryIO:
    """The bytes of a file of this machine."""
    return Path(path).open("rb")


def digest_of_text(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def file_digest(file: Any, opened: Callable[[Any], BinaryIO] = open_path) -> str:
    """SHA-256 of a file's bytes."""
    found = hashlib.sha256()
    with opened(file) as stream:
        while piece := stream.read(_PIECE_BYTES):
            found.update(piece)
    return f"sha256:{found.hexdigest()}"


def check_file(file: Any, expected: str, opened: Callable[[Any], BinaryIO]) -> None:
    """`Damaged` if the file's bytes are others."""
    found = file_digest(file, opened)
    if found != expected:
        raise Damaged(
            f"the file {file} is not what it was",
            why=f"its digest is {found}, and {expected} was expected",
            fix="put the file back as it was, or make its digest again and begin anew",
        )


def sample_digest(sample: Any) -> str:
    """SHA-256 of a sample: tensors, arrays, images, numbers, texts, and what is made of them."""
    found = hashlib.sha256()
    _add(found.update, sample)
    return f"sha256:{found.hexdigest()}"


def digests_of(data: Any) -> Any:
    """The digests of data that is known to be good: of `Sharded` data by file, otherwise a list by
    sample. It reads everything once."""
    if hasattr(data, "files") and hasattr(data, "open"):
        return {str(file): file_digest(file, data.open) for file in data.files}
    return [sample_digest(data[number]) for number in range(len(data))]


def checked(dataset: Any, digests: Sequence[str]) -> Checked:
    """The same data set; each sample is compared with its digest when it is read. Wrap the data
    set as it is stored, before anything is drawn at random."""
    return Checked(dataset, digests)


class Checked:
    """See `checked`."""

    def __init__(self, dataset: Any, digests: Sequence[str]) -> None:
        if len(dataset) != len(digests):
            raise Usage(
                f"{len(digests)} digests for {len(dataset)} samples",
                why="each sample needs its own",
                fix="make them with train.digests_of(dataset)",
            )
        self._dataset, self._digests = dataset, digests

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, number: int) -> Any:
        return self._compared(number, self._dataset[number])

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        if many := getattr(self._dataset, "__getitems__", None):
            found = many(list(numbers))
            return [self._compared(*each) for each in zip(numbers, found, strict=True)]
        return [self[number] for number in numbers]

    def _compared(self, number: int, sample: Any) -> Any:
        found, expected = sample_digest(sample), self._digests[number]
        if found != expected:
            raise Damaged(
                f"sample {number} of {len(self)} is not what it was",
                why=f"its digest is {found}, and {expected} was expected",
                fix="put the data back as it was, or make its digests again and begin anew",
            )
        return sample


def _add(update: Callable[[bytes], None], value: Any) -> None:
    """One spelling for each value; its kind and its length are part of it."""
    if isinstance(value, Mapping):
        update(b"m%d:" % len(value))
        for key in sorted(value, key=str):
            _add(update, str(key))
            _add(update, value[key])
    elif isinstance(value, (list, tuple)):
        update(b"l%d:" % len(value))
        for each in value:
            _add(update, each)
    elif isinstance(value, str):
        _sized(update, b"s", value.encode())
    elif isinstance(value, (bytes, bytearray, memoryview)):
        _sized(update, b"b", bytes(value))
    elif value is None or isinstance(value, (bool, int)):
        _sized(update, b"i", repr(value).encode())
    elif isinstance(value, float):
        _sized(update, b"f", struct.pack("<d", value))
    elif isinstance(value, torch.Tensor) or hasattr(value, "tobytes"):
        _add_array(update, value)
    else:
        raise Usage(
            f"a sample has a {type(value).__name__}, which has no digest",
            why="digests are made of tensors, arrays, images, numbers, texts, lists and mappings",
            fix="check the files instead (train.Sharded(..., digests=...)), or the data set below",
        )


def _add_array(update: Callable[[bytes], None], value: Any) -> None:
    """A tensor, an array, or an image: what it is, then its bytes."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().contiguous()
        what = f"{value.dtype} {tuple(value.shape)}".removeprefix("torch.")
        data = value.reshape(-1).view(torch.uint8).numpy().tobytes()
    elif hasattr(value, "dtype"):
        what, data = f"{value.dtype} {tuple(value.shape)}", value.tobytes()
    else:
        what = f"{getattr(value, 'mode', '')} {getattr(value, 'size', '')}"
        data = value.tobytes()
    _sized(update, b"a", what.encode())
    _sized(update, b"b", data)


def _sized(update: Callable[[bytes], None], kind: bytes, data: bytes) -> None:
    update(b"%s%d:" % (kind, len(data)))
    update(data)
