"""Which version is loaded when, and what the prefork server is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest

from holdfast.models.records import ModelKind, Signature, Version
from holdfast.serve.records import Load, ServiceSpec
from holdfast.serve.replica import versions
from holdfast.serve.replica.batching import Array, BatchPace
from holdfast.serve.replica.engine import Engine
from holdfast.serve.replica.model_cache import ModelCache
from holdfast.serve.replica.trial import Manner, PreforkServer, Prepared
from holdfast.serve.replica.versions import Versions
from holdfast.storage import Blobs

MANNER = Manner(batches=True, pace=BatchPace.SHORT)


class Listens:
    """A prefork server that writes down what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def fetch(self, record: Version, cache: Path) -> bool:
        self.asked.append(f"fetch {record.number}")
        return True

    def trial(self, record: Version, folder: Path, batch_max: int) -> Manner:
        self.asked.append(f"try {record.number}")
        return MANNER

    def warm(self, record: Version) -> None:
        self.asked.append(f"warm for {record.kind.value}")


class Echo:
    def predict(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return dict(inputs)

    def close(self) -> None: ...


class Records:
    """Where versions come from: all are torch's."""

    def record(self, number: int) -> Version:
        return Version("m", number, ModelKind.TORCH, Signature((), ()), {}, f"sha256:{number}", 0.0)

    def blobs(self) -> Blobs:
        raise AssertionError("the prefork server fetches")


def test_the_prefork_server_is_warm_before_the_second_version_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefork = Listens()
    monkeypatch.setattr(versions, "prepare", lambda *_: Prepared(Echo(), MANNER))

    async def live() -> None:
        changed = asyncio.Event()
        engine = Engine(ServiceSpec("m", "m", "1"), worker=1)
        cache = ModelCache(tmp_path / "cache", 1)
        held = Versions(engine, cache, Records(), cast("PreforkServer", prefork), changed.set)
        running = asyncio.create_task(held.run())
        for number in (1, 2, 3):
            held.hold(range(1, number + 1), 0)
            while held.states[number].state is not Load.READY:
                changed.clear()
                await changed.wait()
        running.cancel()
        await asyncio.wait([running])
        await engine.close()

    asyncio.run(asyncio.wait_for(live(), 60))
    assert prefork.asked == ["fetch 1", "warm for torch", "fetch 2", "try 2", "fetch 3", "try 3"]
