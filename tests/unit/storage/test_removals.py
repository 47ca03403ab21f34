"""A store whose deletes ignore every condition, as MinIO's do: nothing rests on one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from holdfast.control.decide.commands import CommitCheckpoint
from holdfast.control.decide.facts import Attempt
from holdfast.control.store.manifests import manifests_in
from holdfast.storage import Blobs, Part, Retrying, put_part
from holdfast.storage.claims import Claims
from holdfast.storage.deadline import TransferDeadline
from holdfast.storage.garbage import References, Sweeper
from holdfast.storage.manifests import Manifest, read_manifest, verify, write_manifest
from holdfast.storage.memory import MemoryBackend
from holdfast.wire.errors import Missing, Unavailable
from tests.unit.storage.test_address import HandClock

GRACE_S = 100.0
WAIT_S = 20.0
PATIENCE_S = 120.0


class TwoSteps(MemoryBackend):
    """A removal is a look and a delete without any condition; between the two it may be held up."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__("two steps", clock)
        self.looked = threading.Event()
        self.go_on = threading.Event()

    def delete_unless_newer(self, key: str, than_s: float, deadline: TransferDeadline) -> bool:
        found = self.stat(key)
        if found is not None and found.modified_s > than_s:
            return False
        self.looked.set()
        assert self.go_on.wait(PATIENCE_S)
        self.delete(key)
        return True


@dataclass
class Leader:
    """One process: it sweeps and it commits."""

    clock: HandClock = field(default_factory=HandClock)
    claims: Claims = field(default_factory=Claims)

    def __post_init__(self) -> None:
        self.backend = TwoSteps(self.clock)
        self.blobs = Blobs(self.backend, Retrying(clock=self.clock))
        self.write = manifests_in(self.blobs, self.claims)

    def sweep_to_the_last_moment(self, pool: ThreadPoolExecutor) -> None:
        """What is old is marked, has waited, was looked at, and is about to be deleted."""
        self.clock.at_s += 2 * GRACE_S
        sweeper = Sweeper(
            self.blobs, References, grace_s=GRACE_S, wait_s=WAIT_S, claims=self.claims
        )
        assert sweeper.step().marked
        self.clock.at_s += WAIT_S
        pool.submit(sweeper.step)
        assert self.backend.looked.wait(PATIENCE_S)

    def commit(self, part: Part) -> str:
        return self.write(CommitCheckpoint("train", Attempt(1, 10, 1, 0.0), {1: (part,)}))


def _unneeded_part(leader: Leader) -> None:
    put_part(leader.blobs, b"weights")


def _manifest_without_a_commit(leader: Leader) -> None:
    part = put_part(leader.blobs, b"weights")
    write_manifest(leader.blobs, Manifest("train", 10, 1, {1: (part,)}))
    leader.blobs.delete(part.key)


@pytest.mark.parametrize("left", [_unneeded_part, _manifest_without_a_commit])
def test_a_commit_names_what_a_removal_under_way_takes_from_it(
    left: Callable[[Leader], None],
) -> None:
    leader = Leader()
    left(leader)
    with ThreadPoolExecutor() as pool:
        leader.sweep_to_the_last_moment(pool)
        # A worker writes the same bytes anew, since they are old, and says that they are there.
        part = put_part(leader.blobs, b"weights", grace_s=GRACE_S)
        committing = pool.submit(leader.commit, part)
        with pytest.raises(TimeoutError):
            committing.result(0.2)
        leader.backend.go_on.set()
        try:
            key = committing.result(PATIENCE_S)
        except Missing:
            return  # it was found out in time: this checkpoint is not committed
    verify(leader.blobs, read_manifest(leader.blobs, key))


def test_what_a_commit_is_about_to_name_is_not_removed_meanwhile() -> None:
    leader = Leader()
    part = put_part(leader.blobs, b"weights")
    leader.clock.at_s += 2 * GRACE_S
    sweeper = Sweeper(
        leader.blobs, References, grace_s=GRACE_S, wait_s=WAIT_S, claims=leader.claims
    )
    assert sweeper.step().marked == 1
    leader.clock.at_s += WAIT_S
    leader.backend.go_on.set()
    with leader.claims.needing([part.key]), leader.claims.needing([part.key]):
        assert sweeper.step().removed == 0
    assert leader.blobs.exists(part.key)
    assert sweeper.step().marked == 1
    leader.clock.at_s += WAIT_S
    assert sweeper.step().removed == 1


def test_whoever_waits_for_a_removal_that_does_not_end_is_told_what_it_waits_for() -> None:
    claims = Claims()
    with (
        claims.removing("parts/x") as free,
        pytest.raises(Unavailable, match="parts/x"),
        claims.needing(["parts/x"], timeout_s=0.01),
    ):
        assert free
    with claims.needing(["parts/x"], timeout_s=0.01):
        pass
