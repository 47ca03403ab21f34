"""The line of writes over a real store: order, one number each, and what a full disk leaves."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable, Callable
from pathlib import Path

from holdfast.coordination.embedded import protocol as p
from holdfast.coordination.embedded import requests
from holdfast.coordination.embedded.pipeline import Pipeline, PipelineEntry
from holdfast.coordination.embedded.store import Store
from holdfast.coordination.embedded.transactions import SetData, WriteTransaction
from holdfast.system.clock import SystemClock
from holdfast.wire.errors import DiskFailed
from tests.proofs import wire


class Line:
    """A pipeline over a folder, and what came back from it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.committed: list[PipelineEntry] = []
        self.batches = 0
        self.full: list[PipelineEntry] = []
        self.broken: list[BaseException] = []
        self.pipeline = Pipeline(
            asyncio.get_running_loop(),
            store,
            SystemClock(),
            on_committed=self._take,
            on_full=lambda batch, error: self.full.extend(batch),
            on_broken=self.broken.append,
        )

    def _take(self, batch: list[PipelineEntry], time_ms: int) -> None:
        self.batches += 1
        self.committed.extend(batch)
        for entry in batch:
            if entry.transaction is not None:
                self.store.tree.apply(entry.transaction, entry.zxid, time_ms)

    def write(self, data: bytes = b"x") -> PipelineEntry:
        body = wire.set_data_body("/zookeeper", data)
        operation = requests.decode_write(p.SET_DATA, body)
        assert isinstance(operation, SetData)
        entry = PipelineEntry(
            None, 0, p.SET_DATA, body, transaction=WriteTransaction(1, (), operation)
        )
        self.pipeline.submit(entry)
        return entry

    def read(self) -> PipelineEntry:
        entry = PipelineEntry(None, 0, p.GET_DATA, b"")
        self.pipeline.submit(entry)
        return entry


def run(folder: Path, story: Callable[[Line], Awaitable[None]]) -> None:
    store = Store.open(folder)

    async def told() -> None:
        line = Line(store)
        try:
            await story(line)
        finally:
            line.pipeline.close()

    try:
        asyncio.run(asyncio.wait_for(told(), 60))
    finally:
        store.close()


def _largest(folder: Path) -> int:
    return max(path.stat().st_size for path in folder.iterdir())


def test_everything_comes_back_once_in_order_and_only_writes_are_numbered(tmp_path: Path) -> None:
    async def story(line: Line) -> None:
        asked = [line.write() if number % 3 else line.read() for number in range(2_000)]
        await line.pipeline.drain()
        assert line.committed == asked
        zxids = [entry.zxid for entry in asked if entry.transaction]
        assert zxids == list(range(1, len(zxids) + 1))
        assert line.batches < 50, "they must share fsyncs"

    run(tmp_path, story)
    store = Store.open(tmp_path)
    assert store.last_zxid == 1_333
    store.close()


def test_a_full_disk_gives_the_numbers_of_the_lost_batch_to_the_next_one(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def story(line: Line) -> None:
        line.write()
        await line.pipeline.drain()
        resource.setrlimit(resource.RLIMIT_FSIZE, (_largest(tmp_path), hard))
        try:
            lost = [line.write(bytes(600_000)), line.read()]
            await line.pipeline.drain()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert line.full == lost
        kept = line.write()
        await line.pipeline.drain()
        assert kept.zxid == lost[0].zxid == 2
        assert not line.broken

    run(tmp_path, story)


def test_a_disk_that_fails_is_told_once_and_nothing_is_acknowledged_after_it(
    tmp_path: Path,
) -> None:
    async def story(line: Line) -> None:
        line.write()
        await line.pipeline.drain()
        line.store._broken = DiskFailed("the disk failed on purpose")
        line.write()
        await line.pipeline.drain()
        line.write()
        await asyncio.sleep(0.05)
        assert [type(error) for error in line.broken] == [DiskFailed]
        assert len(line.committed) == 1

    run(tmp_path, story)
