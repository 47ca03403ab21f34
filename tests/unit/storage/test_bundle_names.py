"""Names of bundles: versions, the current one, rollback."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.storage.bundle_names import (
    BUNDLE_VERSIONS_KEPT,
    BundleName,
    from_bytes,
    pushed,
    record_push,
    resolved,
    rolled_back,
    split_reference,
    to_bytes,
)
from holdfast.storage.keys import digest_of
from holdfast.wire.errors import Conflict, Corrupt, Missing, Usage


def digest(number: int) -> str:
    return digest_of(b"%d" % number)


def after(*numbers: int) -> BundleName:
    name: BundleName | None = None
    for number in numbers:
        name = pushed(name, "net", digest(number), 10, float(number))
    assert name is not None
    name.validate()
    return name


def test_a_push_makes_a_version_that_is_current_and_the_same_push_again_none() -> None:
    name = after(1, 2, 2, 3)
    assert [found.number for found in name.versions] == [1, 2, 3]
    assert resolved(name).digest == digest(3)
    assert resolved(name, 1).digest == digest(1)
    assert after(1, 2, 1).current == 3


def test_a_rollback_takes_an_older_version_and_the_next_push_a_new_number() -> None:
    name = rolled_back(after(1, 2, 3))
    assert resolved(name).number == 2
    assert resolved(rolled_back(name)).number == 1
    with pytest.raises(Missing, match="before 1"):
        rolled_back(rolled_back(name))
    assert resolved(rolled_back(name, 3)).number == 3
    with pytest.raises(Missing, match="from 1 to 3"):
        rolled_back(name, 9)
    assert pushed(name, "net", digest(4), 10, 4.0).current == 4


def test_old_versions_go_when_there_are_too_many_and_numbers_go_on() -> None:
    name = after(*range(BUNDLE_VERSIONS_KEPT + 5))
    assert len(name.versions) == BUNDLE_VERSIONS_KEPT
    assert name.current == name.versions[-1].number == BUNDLE_VERSIONS_KEPT + 5
    assert name.versions[0].number == 6


@given(st.lists(st.one_of(st.integers(0, 5), st.just(-1)), min_size=1, max_size=30))
def test_whatever_is_pushed_and_rolled_back_the_name_stays_valid_and_survives_its_record(
    actions: list[int],
) -> None:
    name = pushed(None, "net", digest(0), 1, 0.0)
    taken: dict[int, str] = {}
    for action in actions:
        if action >= 0:
            name = pushed(name, "net", digest(action), 1, 0.0)
        elif name.current > name.versions[0].number:
            name = rolled_back(name)
        name.validate()
        for version in name.versions:
            assert taken.setdefault(version.number, version.digest) == version.digest
        assert from_bytes(to_bytes(name)) == name


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b'{"format":2}',
        to_bytes(after(1)).replace(b'"current":1', b'"current":2'),
    ],
)
def test_a_record_that_is_not_ours_is_not_believed(data: bytes) -> None:
    with pytest.raises(Corrupt):
        from_bytes(data)


def test_a_reference_is_a_name_with_or_without_a_version() -> None:
    assert split_reference("net") == ("net", None)
    assert split_reference("net@12") == ("net", 12)
    for wrong in ("", "Net", "-net", "a/b", "net@", "net@x", "net@-1", "net@²", "n" * 101):
        with pytest.raises(Usage):
            split_reference(wrong)


class OvertakenNames:
    """Names in a dictionary; before the first writes somebody else pushes."""

    def __init__(self, overtaken: int) -> None:
        self.kept: dict[str, tuple[BundleName, int]] = {}
        self.overtaken = overtaken

    def read(self, name: str) -> tuple[BundleName | None, int]:
        return self.kept.get(name, (None, -1))

    def write(self, name: BundleName, revision: int) -> None:
        if self.overtaken:
            self.overtaken -= 1
            before, at = self.read(name.name)
            other = pushed(before, name.name, digest(100 + self.overtaken), 10, 0.0)
            self.kept[name.name] = (other, at + 1)
        if self.read(name.name)[1] != revision:
            raise Conflict("overtaken")
        self.kept[name.name] = (name, revision + 1)


def test_a_push_that_is_overtaken_becomes_the_next_version() -> None:
    names = OvertakenNames(overtaken=3)
    assert record_push(names, "net", digest(1), 10, 1.0).number == 4
    assert record_push(names, "net", digest(1), 10, 2.0).number == 4
    with pytest.raises(Conflict, match="all the time"):
        record_push(OvertakenNames(overtaken=10**6), "net", digest(1), 10, 1.0)
