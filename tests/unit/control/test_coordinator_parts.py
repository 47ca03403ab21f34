"""The parts of the coordinator that need no server: orders under way, manifests, histories."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import pairwise

import pytest

from holdfast.control.decide.commands import (
    CommitCheckpoint,
    Decision,
    Forget,
    PlaceWorker,
    StopWorker,
)
from holdfast.control.decide.facts import Attempt, Part, Placement
from holdfast.control.rpc.outstanding import ORDER_AGAIN_S, ORDER_AGAIN_S_MAX, Outstanding
from holdfast.control.shell import leading
from holdfast.control.store import history
from holdfast.control.store.manifests import ManifestWriter, manifests_in
from holdfast.storage.blobs import Blobs
from holdfast.storage.claims import Claims
from holdfast.storage.manifests import read_manifest
from holdfast.storage.memory import MemoryBackend
from holdfast.storage.parts import put_part
from holdfast.wire import values
from holdfast.wire.errors import Unavailable
from holdfast.wire.limits import REASON_CHARACTERS_MAX, TROUBLE_S
from holdfast.wire.orders import StartWorker
from holdfast.wire.resources import Resources

STOP = StopWorker("a", "train", 1, 30.0)


def test_an_order_is_sent_once_and_again_when_it_is_late_ever_more_rarely() -> None:
    orders, sent_s, now_s = Outstanding(), [], 0.0
    while now_s < 200:
        orders.keep([STOP])
        if orders.is_due(STOP, 1, now_s):
            orders.sent(STOP, 1, now_s)
            sent_s.append(now_s)
        now_s += 0.5
    gaps = [later - earlier for earlier, later in pairwise(sent_s)]
    assert gaps[:3] == [ORDER_AGAIN_S, 2 * ORDER_AGAIN_S, 4 * ORDER_AGAIN_S]
    assert gaps == sorted(gaps)
    assert max(gaps) == ORDER_AGAIN_S_MAX


def test_an_order_goes_out_at_once_on_a_new_connection_or_when_it_says_something_else() -> None:
    orders = Outstanding()
    assert orders.is_new(STOP)
    orders.sent(STOP, 1, 0.0)
    assert not orders.is_due(STOP, 1, 0.1)
    assert not orders.is_new(STOP)
    assert orders.is_due(STOP, 2, 0.1)
    other = StopWorker("a", "train", 1, 5.0)
    assert orders.is_due(other, 1, 0.1)
    assert orders.is_new(other)
    assert orders.is_due(Forget("a", "train", 1), 1, 0.1)


def test_an_order_that_is_not_wanted_any_more_is_forgotten() -> None:
    orders = Outstanding()
    orders.sent(STOP, 1, 0.0)
    orders.keep([Forget("a", "train", 1)])
    assert len(orders) == 0
    assert orders.is_due(STOP, 1, 0.1)


def commit(number: int = 1) -> CommitCheckpoint:
    return CommitCheckpoint("train", Attempt(number, 10, 1, 0.0), {1: (Part("k", 1, "d"),)})


def test_a_manifest_is_written_once_and_its_key_comes_when_it_is_durable() -> None:
    go_on, woken, written = threading.Event(), threading.Event(), []

    def write(record: CommitCheckpoint) -> str:
        assert go_on.wait(30)
        written.append(record)
        return f"m/{record.attempt.number}"

    writer = ManifestWriter(write, woken.set)
    assert writer.key_of(commit(), 0.0) is None
    assert writer.key_of(commit(), 0.0) is None
    go_on.set()
    assert woken.wait(30)
    assert writer.key_of(commit(), 0.0) == "m/1"
    assert writer.key_of(commit(), 0.0) == "m/1"
    assert written == [commit()]
    assert writer.key_of(commit(2), 0.0) is None, "another attempt has another manifest"
    writer.close()


def test_a_manifest_that_failed_is_tried_again_after_a_pause() -> None:
    woken, tries = threading.Semaphore(0), []

    def write(record: CommitCheckpoint) -> str:
        tries.append(record)
        if len(tries) == 1:
            raise Unavailable("the store is away")
        return "m"

    writer = ManifestWriter(write, woken.release)
    assert writer.key_of(commit(), 0.0) is None
    assert woken.acquire(timeout=30)
    assert writer.key_of(commit(), 0.0) is None
    assert writer.key_of(commit(), TROUBLE_S / 2) is None
    assert len(tries) == 1
    assert writer.key_of(commit(), TROUBLE_S) is None
    assert woken.acquire(timeout=30)
    assert writer.key_of(commit(), TROUBLE_S) == "m"
    writer.close()


def test_a_bug_in_writing_a_manifest_is_not_swallowed() -> None:
    woken = threading.Event()

    def write(record: CommitCheckpoint) -> str:
        raise ZeroDivisionError

    writer = ManifestWriter(write, woken.set)
    writer.key_of(commit(), 0.0)
    assert woken.wait(30)
    with pytest.raises(ZeroDivisionError):
        writer.key_of(commit(), 0.0)
    writer.close()


def test_workers_that_are_treated_alike_share_an_entry_and_a_long_reason_is_cut() -> None:
    def placed(worker: int) -> Decision:
        return Decision(
            PlaceWorker("train", Placement(worker, "a")), f"worker {worker}: there is room"
        )

    ended = Decision(Forget("a", "train", 9), "x" * 10_000)
    entries = history.entries_of([placed(1), placed(2), placed(3), ended, placed(4)], 5.0, 7)
    assert [entry.what for entry in entries] == ["PlaceWorker", "Forget", "PlaceWorker"]
    assert entries[0].reason == "worker 1: there is room (and 2 more like it)"
    assert len(entries[1].reason) == REASON_CHARACTERS_MAX
    assert entries[2].reason == "worker 4: there is room"
    assert {(entry.at_s, entry.term) for entry in entries} == {(5.0, 7)}


def test_a_manifest_is_a_blob_that_names_the_parts_of_every_worker() -> None:
    blobs = Blobs(MemoryBackend("test"))
    stored = [put_part(blobs, data) for data in (b"one", b"two")]
    parts = {
        worker: (Part(part.key, part.size_bytes, part.digest),)
        for worker, part in enumerate(stored, start=1)
    }
    key = manifests_in(blobs, Claims())(CommitCheckpoint("train", Attempt(4, 10, 3, 0.0), parts))
    found = read_manifest(blobs, key)
    assert (found.job, found.step, found.view) == ("train", 10, 3)
    assert [part.key for _, part in found.parts()] == [part.key for part in stored]


def test_workers_of_a_queue_with_a_user_are_ordered_to_run_as_it_and_no_others() -> None:
    start = StartWorker("a", "train", 1, "", ("x",), Resources(cpu=1.0), queue="trials")
    for order, user in (
        (start, "trials-user"),
        (replace(start, queue="other"), ""),
        (replace(start, queue=""), ""),
    ):
        decision = leading._as_its_user(Decision(order, "it is placed"), {"trials": "trials-user"})
        found = decision.command
        assert isinstance(found, StartWorker)
        assert found.user == user
        assert values.order_from(values.order_bytes(found)) == found
    stop = Decision(STOP, "enough")
    assert leading._as_its_user(stop, {"trials": "trials-user"}) is stop
