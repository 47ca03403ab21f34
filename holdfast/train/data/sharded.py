"""Data that is read in its order: files, or whatever else, divided over the lanes.

    data = train.Sharded(sorted(folder.glob("*.jsonl")), read=read_lines, by="range")
    for batch in run.batches(data, lane_batch=32, epochs=3): ...

Each file belongs to one lane, by one of three rules, so a lane's samples are the same whichever
worker holds it. A lane that has read all its files has empty batches until the others are through:
then the epoch ends. A lane that moves to another worker is entered there in the file where it was:
the state's notes say which one, and how many samples were before it. Within the file it is read
from its beginning, or, if `read` takes `start`, from there.
"""

from __future__ import annotations

import inspect
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any, BinaryIO, Final, Literal

from holdfast.train.chance import seed_of
from holdfast.train.data.digests import Damaged, check_file, digest_of_text, open_path
from holdfast.wire.errors import Usage

# A point of the ring on which files are placed: so many for each lane, so that lanes get about the
# same number of files.
RING_POINTS_PER_LANE: Final = 64

By = Literal["range", "hash", "ring"]
_WAYS: Final = ("range", "hash", "ring")
# Where a lane is: the number of a file among its own, and its samples in those before.
Mark = tuple[int, int]


@dataclass(frozen=True)
class Sharded:
    """`read(file)` gives the samples of one file, always the same in the same order; one that has
    `start` as its second argument gives those from this number on.

    `by`: "range" gives each lane an equal run of the list; "hash" places a file by its name alone,
    so a new file moves no other; "ring" does so by consistent hashing, which also moves few files
    when the number of lanes is another. `lengths`: how many samples each file has, in the order of
    `files`, or as a function of the file: what is read must agree. `digests`: SHA-256 of each
    file's bytes, `{file: "sha256:..."}`, checked whenever a file is begun; files that are no paths
    are read with `open`. See docs/training.md.
    """

    files: Sequence[Any]
    read: Callable[..., Iterable[Any]]
    by: By = "range"
    shuffle_files: bool = False
    lengths: Sequence[int] | Callable[[Any], int] | None = None
    digests: Mapping[Any, str] | None = None
    open: Callable[[Any], BinaryIO] = open_path

    def __post_init__(self) -> None:
        if self.by not in _WAYS:
            raise Usage(
                f"files cannot be divided by {self.by!r}", fix=f"use one of {', '.join(_WAYS)}"
            )
        if isinstance(self.lengths, Sequence) and len(self.lengths) != len(self.files):
            raise Usage(
                f"{len(self.lengths)} lengths for {len(self.files)} files",
                fix="give one for each file, in the order of the files",
            )
        without = [file for file in self.files if self.digests is not None and not self._sum(file)]
        if without:
            raise Usage(
                f"{len(without)} of {len(self.files)} files have no digest, the first is "
                f"{without[0]}",
                why="a file without one would not be checked",
                fix="make them with train.digests_of(train.Sharded(files, read=...))",
            )

    def files_of(self, lane: int, lanes: int, epoch: int = 0, seed: int = 0) -> list[Any]:
        """The lane's files in the order in which it reads them."""
        mine = list(self._divided(lane, lanes))
        if self.shuffle_files:
            mine.sort(key=lambda file: seed_of(seed, "file", epoch, str(file)))
        return mine

    def enter(
        self, lane: int, lanes: int, epoch: int, seed: int, at: int = 0, mark: Mark | None = None
    ) -> Iterator[tuple[Any, Mark]]:
        """The lane's samples from number `at` on, each with its file's mark. `mark`: that of sample
        `at`; without it files are passed over by their lengths, where these are known."""
        files = self.files_of(lane, lanes, epoch, seed)
        number, before = mark or (0, 0)
        certain = mark is not None  # sample `at` is in this file, so it may be begun there
        while number < len(files):
            file, start = files[number], max(0, at - before)
            length = self._length(file)
            if length is not None and 0 < start >= length:
                number, before = number + 1, before + length
                continue
            certain = certain or length is not None or not start
            found = start if certain and self._takes_start else 0
            for item in self._opened(file, found):
                found += 1
                if length is not None and found > length:
                    break
                if found > start:
                    yield item, (number, before)
            if length is not None and found != length:
                raise _other_length(file, f"lengths= says that it has {length}", found, length)
            if certain and 0 < start >= found:
                raise _other_length(file, f"it had more than {start} when it was read", found, None)
            number, before, certain = number + 1, before + found, False

    @property
    def facts(self) -> dict[str, Any]:
        """What of it must not change under a job. Names by their last part: a folder may move."""
        named = all(isinstance(file, (str, PurePath, int)) for file in self.files)
        names = "\n".join(PurePath(str(file)).name for file in self.files) if named else ""
        return {
            "files": len(self.files),
            "names of the files": digest_of_text(names) if named else "",
            "by": self.by,
            "shuffle_files": self.shuffle_files,
        }

    def _opened(self, file: Any, start: int) -> Iterable[Any]:
        if self.digests is not None:
            check_file(file, self._sum(file), self.open)
        return self.read(file, start) if self._takes_start else self.read(file)

    def _sum(self, file: Any) -> str:
        assert self.digests is not None
        return self.digests.get(file) or self.digests.get(str(file)) or ""

    def _length(self, file: Any) -> int | None:
        if self.lengths is None:
            return None
        if callable(self.lengths):
            return int(self.lengths(file))
        return self._known_lengths[file]

    @cached_property
    def _known_lengths(self) -> dict[Any, int]:
        assert isinstance(self.lengths, Sequence)
        return {file: int(each) for file, each in zip(self.files, self.lengths, strict=True)}

    @cached_property
    def _takes_start(self) -> bool:
        """Whether `read` has a second argument for where to begin: one without a default, or one
        called `start`."""
        try:
            arguments = list(inspect.signature(self.read).parameters.values())
        except (TypeError, ValueError):
            return False
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        second = [each for each in arguments if each.kind in kinds][1:2]
        return any(each.name == "start" or each.default is each.empty for each in second)

    def _divided(self, lane: int, lanes: int) -> Sequence[Any]:
        count = len(self.files)
        if self.by == "range":
            return self.files[lane * count // lanes : (lane + 1) * count // lanes]
        if self.by == "hash":
            return [file for file in self.files if seed_of(str(file)) % lanes == lane]
        points = sorted(
            (seed_of("lane", each, point), each)
            for each in range(lanes)
            for point in range(RING_POINTS_PER_LANE)
        )
        places = [place for place, _ in points]
        return [
            file
            for file in self.files
            if points[bisect(places, seed_of("file", str(file))) % len(points)][1] == lane
        ]


def _other_length(file: Any, why: str, found: int, length: int | None) -> Damaged:
    more = "more than " if length is not None and found > length else ""
    return Damaged(
        f"{file} has {more}{length if more else found} samples",
        why=why,
        fix="put the file back as it was, or begin anew with what it has now",
    )
