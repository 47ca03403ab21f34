"""Names of bundles: each has numbered versions, and one of them is current. Pure values and a port.

A version's digest never changes, and a number is never used twice. A job is pinned to a digest when
it is submitted: a new version, or a rollback, is for jobs to come.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Final, Protocol

from holdfast.storage.keys import check_digest
from holdfast.wire.errors import Conflict, Corrupt, Missing, Usage
from holdfast.wire.limits import UPDATE_TRIES_MAX

# Old versions of a name; a job is pinned to a digest, so a forgotten version harms no job.
BUNDLE_VERSIONS_KEPT: Final = 100

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class BundleVersion:
    """One push."""

    number: int
    digest: str
    size_bytes: int
    pushed_s: float


@dataclass(frozen=True, slots=True)
class BundleName:
    """A name with its versions, oldest first. `current` is the number of the one in use."""

    name: str
    versions: tuple[BundleVersion, ...]
    current: int

    def version(self, number: int) -> BundleVersion:
        """`Missing`, with the numbers that there are, when it is none of them."""
        for found in self.versions:
            if found.number == number:
                return found
        first, last = self.versions[0].number, self.versions[-1].number
        raise Missing(
            f"the bundle {self.name!r} has no version {number}",
            why=f"its versions go from {first} to {last}",
            fix=f"holdfast bundle versions {self.name}",
        )

    def validate(self) -> None:
        """What is always true of a name."""
        numbers = [found.number for found in self.versions]
        assert _NAME.fullmatch(self.name), self.name
        assert numbers, "a name begins with its first version"
        assert numbers == sorted(set(numbers)), numbers
        assert numbers[0] >= 1, numbers
        assert len(numbers) <= BUNDLE_VERSIONS_KEPT, len(numbers)
        assert self.current in numbers, (self.current, numbers)


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Usage(
            f"not a name of a bundle: {name[:100]!r}",
            fix="use at most 100 of a-z, 0-9, dot, dash and underscore, beginning with a letter or"
            " a digit",
        )
    return name


def pushed(
    before: BundleName | None, name: str, digest: str, size_bytes: int, now_s: float
) -> BundleName:
    """The name after a push: a new version, which is current. A push of what is current already
    changes nothing. The oldest versions go when there are too many, never the current one."""
    check_digest(digest)
    if before is None:
        first = BundleVersion(1, digest, size_bytes, now_s)
        return BundleName(check_name(name), (first,), current=1)
    if before.version(before.current).digest == digest:
        return before
    number = before.versions[-1].number + 1
    versions = (*before.versions, BundleVersion(number, digest, size_bytes, now_s))
    return BundleName(name, versions[-BUNDLE_VERSIONS_KEPT:], current=number)


def rolled_back(before: BundleName, to: int | None = None) -> BundleName:
    """The name with an older version as current: `to`, or the one before the current."""
    if to is None:
        older = [found.number for found in before.versions if found.number < before.current]
        if not older:
            raise Missing(
                f"the bundle {before.name!r} has no version before {before.current}",
                fix=f"holdfast bundle versions {before.name}",
            )
        to = older[-1]
    return replace(before, current=before.version(to).number)


def split_reference(reference: str) -> tuple[str, int | None]:
    """`NAME` or `NAME@3`: the name, and the version that was asked for."""
    name, at, number = reference.partition("@")
    if at and not (number.isascii() and number.isdigit()):
        raise Usage(f"not a version: {reference!r}", fix="write it as NAME or NAME@NUMBER")
    return check_name(name), int(number) if at else None


def resolved(name: BundleName, number: int | None = None) -> BundleVersion:
    """The version that a new job gets."""
    return name.version(name.current if number is None else number)


def to_bytes(name: BundleName) -> bytes:
    name.validate()
    tree = {
        "format": _FORMAT,
        "name": name.name,
        "current": name.current,
        "versions": [[v.number, v.digest, v.size_bytes, v.pushed_s] for v in name.versions],
    }
    return json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()


def from_bytes(data: bytes) -> BundleName:
    """The name that `to_bytes` wrote; `Corrupt` for anything else. What a newer version has added
    to it is passed over."""
    try:
        tree = json.loads(data)
        if tree["format"] != _FORMAT:
            raise ValueError("an unknown format")  # noqa: TRY301
        versions = tuple(
            BundleVersion(int(number), check_digest(digest), int(size_bytes), float(pushed_s))
            for number, digest, size_bytes, pushed_s, *_ in tree["versions"]
        )
        name = BundleName(tree["name"], versions, tree["current"])
        name.validate()
    except (ValueError, TypeError, KeyError, AttributeError, AssertionError, Usage) as error:
        raise Corrupt(
            "the record of a bundle's name cannot be read",
            why=str(error),
            fix="push the bundle under a new name",
        ) from error
    return name


class BundleNames(Protocol):
    """Where names are kept: the coordination plane. `revision` is what a write must still find."""

    def read(self, name: str) -> tuple[BundleName | None, int]:
        """The name, or None, and its revision."""

    def write(self, name: BundleName, revision: int) -> None:
        """Replace it; `Conflict` when it is no longer at that revision."""


def record_push(
    names: BundleNames, name: str, digest: str, size_bytes: int, now_s: float
) -> BundleVersion:
    """Record a push, against others who push at the same time; the version that it became."""
    for _ in range(UPDATE_TRIES_MAX):
        before, revision = names.read(check_name(name))
        after = pushed(before, name, digest, size_bytes, now_s)
        try:
            if after != before:
                names.write(after, revision)
        except Conflict:
            continue
        return resolved(after)
    raise Conflict(
        f"others change the bundle {name!r} all the time",
        why=f"{UPDATE_TRIES_MAX} tries were overtaken",
        fix="try again",
    )
