"""What every online store does when its servers are killed, stand still, or come back, and when it
is closed: bounded answers, clear errors, and nothing lost that a strong table was told."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator

import pytest

from holdfast.features.online.store import Asked, OnlineStore
from holdfast.features.table import Table
from holdfast.system.tasks import WAITED, start_thread
from holdfast.wire.errors import RetryError, TimedOut, Unavailable, Usage
from tests.contract.features.backends import Backend
from tests.contract.features.made import DAY_US, look, newest, prepared, row_of
from tests.waiting import eventually

WRITERS = 4
# Much more than any bound of a store: a call that takes longer hangs.
HANGS_S = 90.0


@pytest.fixture
def disturbed(backend: Backend) -> Iterator[Backend]:
    """The engine, for a test that kills or stops it. It runs again afterwards."""
    try:
        yield backend
    finally:
        backend.kill()
        backend.start()


def calls(store: OnlineStore, table: Table) -> dict[str, Callable[[], object]]:
    """Everything that asks something of the servers."""
    row = row_of(table, trips=1)
    return {
        "prepare": lambda: store.prepare(table),
        "write": lambda: store.write(table, [row]),
        "read": lambda: store.read([Asked(table, [row.key], table.read_level)]),
        "scan": lambda: store.scan(table),
        "forget": lambda: store.forget(table),
    }


def ends(call: Callable[[], object]) -> BaseException | None:
    """What it raises; it does not hang."""
    thread = start_thread(call, "call", WAITED)
    assert thread.join(HANGS_S), "the call hangs"
    try:
        thread.result()
    except Exception as error:  # the test looks at it
        return error
    return None


def test_all_is_well_with_servers_that_run(store: OnlineStore) -> None:
    found = store.status()
    assert found.nodes
    assert {state for _, state in found.nodes} == {"up"}
    assert found.trouble == ""
    assert found.engine


def test_servers_that_were_killed_are_named_with_what_to_do(
    store: OnlineStore, disturbed: Backend, name: str
) -> None:
    table = prepared(store, disturbed, name)
    disturbed.kill()
    for what, call in calls(store, table).items():
        error = ends(call)
        assert isinstance(error, Unavailable | TimedOut), (what, error)
        assert error.why, what
        assert error.fix, what
    found = store.status()
    assert "up" not in {state for _, state in found.nodes}
    assert found.trouble


def test_a_store_works_again_when_its_servers_are_back(
    store: OnlineStore, disturbed: Backend, name: str
) -> None:
    table = prepared(store, disturbed, name)
    before = [row_of(table, f"before-{number}", trips=number) for number in range(50)]
    store.write(table, before)
    disturbed.kill()
    assert ends(calls(store, table)["read"]) is not None
    disturbed.start()
    after = row_of(table, "after", trips=1)

    def again() -> bool:
        try:
            if not disturbed.strong:
                store.prepare(table)
            store.write(table, [after])
        except RetryError:
            return False  # its connections are made again in its own time
        return True

    eventually(again, "the store works again")
    assert newest(store, table, after) == after.data
    if disturbed.strong:
        assert look(store, table, *[row.key for row in before]) == [row.data for row in before]
    eventually(lambda: not store.status().trouble, "all is well")


def test_servers_that_stand_still_are_not_waited_for(
    store: OnlineStore, disturbed: Backend, name: str
) -> None:
    table = prepared(store, disturbed, name)
    row = row_of(table, "kept", trips=1)
    store.write(table, [row])
    disturbed.pause()
    try:
        # A moment passes until all its threads stand still.
        eventually(lambda: ends(calls(store, table)["read"]), "it stands still")
        for what in ("read", "write"):
            error = ends(calls(store, table)[what])
            assert isinstance(error, RetryError), (what, error)
        assert "up" not in {state for _, state in store.status().nodes}
    finally:
        disturbed.resume()

    def works() -> bool:
        try:
            return newest(store, table, row) == row.data
        except RetryError:
            return False

    eventually(works, "the store works again")


@pytest.mark.parametrize("seed", [1, 2])
def test_what_was_acknowledged_is_there_after_a_kill(
    backend: Backend, disturbed: Backend, name: str, seed: int
) -> None:
    """Killed between, and in the middle of, writes of several threads. A store that promises
    nothing comes back all the same."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    store = disturbed.open()
    table = prepared(store, disturbed, name)
    acknowledged: dict[bytes, bytes] = {}
    lock = threading.Lock()
    counts = [0] * WRITERS

    def write(writer: int, over: threading.Event) -> None:
        while not over.is_set():
            counts[writer] += 1
            batch = [
                row_of(table, f"{writer}-{counts[writer] % 50}-{n}", DAY_US + counts[writer], n)
                for n in range(3)
            ]
            try:
                store.write(table, batch)
            except RetryError:
                continue
            with lock:
                acknowledged.update({row.key: row.data for row in batch})

    for _ in range(3):
        over = threading.Event()
        before = len(acknowledged) and max(counts)
        threads = [
            start_thread(lambda w=w, over=over: write(w, over), f"writer-{w}", WAITED)  # type: ignore[misc]
            for w in range(WRITERS)
        ]
        some = before + chance.randrange(20, 60)
        eventually(lambda some=some: min(counts) > some, "some were written")  # type: ignore[misc]
        disturbed.kill()
        over.set()
        for thread in threads:
            thread.result()
        disturbed.start()
        eventually(lambda: not store.status().trouble, "it is back")
    if disturbed.strong:
        keys = sorted(acknowledged)
        for key, found in zip(keys, look(store, table, *keys), strict=True):
            assert found is not None, key
            assert found >= acknowledged[key], "an acknowledged write is lost"
    store.close()


def test_a_closed_store_does_nothing_more(backend: Backend, name: str) -> None:
    store = backend.open()
    table = prepared(store, backend, name)
    store.close()
    store.close()
    for what, call in calls(store, table).items():
        assert isinstance(ends(call), Usage), what
    assert store.status().trouble


def test_when_a_store_is_closed_calls_under_way_end_in_order(backend: Backend, name: str) -> None:
    store = backend.open()
    table = prepared(store, backend, name)
    row = row_of(table, trips=1)
    begun = threading.Event()

    def read() -> None:
        while True:
            newest(store, table, row)
            begun.set()

    threads = [start_thread(read, f"reader-{number}", WAITED) for number in range(4)]
    assert begun.wait(HANGS_S)
    store.close()
    for thread in threads:
        assert thread.join(HANGS_S), "a call hangs"
        with pytest.raises((Usage, RetryError)):
            thread.result()


def test_nothing_is_asked_of_servers_before_the_first_call(disturbed: Backend, name: str) -> None:
    disturbed.kill()
    store = disturbed.open()
    assert store.status().trouble
    store.close()
    assert name
