"""What the system tells on topics: nothing is missing, all is in order, whoever dies meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast import topics
from holdfast.control.decide.facts import Phase
from holdfast.control.store import history
from holdfast.events.records import (
    COMMITTED,
    GAP,
    MODEL_UPDATED_TOPIC,
    PHASE,
    REMOVED,
)
from holdfast.models.registry import Registry
from holdfast.serve.cache.updates import ModelUpdate, ModelUpdates
from holdfast.storage import Blobs, open_store
from tests.contract.leading import status
from tests.integration.published_events import PublishedEvents
from tests.servers.broker import BrokerServer
from tests.unit.models.stage import published
from tests.waiting import soon


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerServer]:
    with BrokerServer(tmp_path / "broker") as server:
        yield server


def test_events_are_caught_up_after_topics_were_away_and_tellers_were_killed(
    broker: BrokerServer, tmp_path: Path
) -> None:
    with PublishedEvents(tmp_path, broker.hosts) as source:
        first = source.start_teller()
        source.decide(0, 20)
        source.wait_for("trouble 19")
        os.kill(broker.pid, signal.SIGSTOP)
        source.decide(20, 30)
        second = source.start_teller()
        first.kill()
        source.decide(50, 20)
        os.kill(broker.pid, signal.SIGCONT)
        source.decide(70, 20)
        broker.kill()
        source.decide(90, 10)
        broker.start()
        source.start_teller()
        source.decide(100, 10)
        second.kill()
        source.decide(110, 10)
        source.leading.write(status(Phase.RUNNING))
        events = source.check(source.wait_for("SetStatus"))
        assert [event.data for event in events if event.kind == PHASE] == [{"phase": "running"}]
        assert [event.name for event in events] == ["train"] * len(events)


def test_what_was_trimmed_or_removed_while_nobody_told_is_a_gap(
    broker: BrokerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "HISTORY_PAGE_ENTRIES", 4)
    monkeypatch.setattr(history, "HISTORY_PAGES_KEPT", 2)
    with PublishedEvents(tmp_path, broker.hosts) as source:
        teller = source.start_teller()
        source.decide(0, 3)
        source.wait_for("trouble 2")
        teller.kill()
        source.decide(3, 20)
        kept = {entry.reason for entry in source.control.history("train")}
        teller = source.start_teller()
        events = source.wait_for("trouble 22")
        (gap,) = [event for event in events if event.kind == GAP]
        lost = {f"trouble {number}" for number in range(3, 23)} - kept
        assert lost
        assert {event.reason for event in events} & lost == set()
        assert len(lost) <= int(gap.data["most"])
        teller.kill()
        source.decide(23, 1)
        source.leading.write(status(Phase.STOPPED))
        source.control.remove("train")
        source.start_teller()
        events = source.wait_for("was removed")
        assert [event.name for event in events if event.kind == REMOVED] == ["train"]
        assert len([event for event in events if event.kind == GAP]) == 2


def test_models_tell_what_changed_on_a_topic_of_their_own(
    broker: BrokerServer, tmp_path: Path
) -> None:
    blobs: Blobs = open_store(str(tmp_path / "store"))
    with PublishedEvents(tmp_path, broker.hosts) as source:
        registry = Registry(source.session, blobs, "anna")
        source.start_teller()
        published(registry, blobs, tmp_path, 2)
        registry.set_alias("digits", "prod", 1)
        registry.set_alias("digits", "prod", 2, why="better")
        registry.retire("digits", 1, "old")
        source.wait_for("version 1 was retired")
        updates = [msgspec.json.decode(value) for value in source.values(MODEL_UPDATED_TOPIC)]
        assert {update["model"] for update in updates} == {"digits"}
        meant = ("change", "version", "alias", "from", "to", "by")
        assert [[update.get(name) for name in meant] for update in updates] == [
            ["published", 1, None, None, None, "anna"],
            ["published", 2, None, None, None, "anna"],
            ["alias.moved", None, "prod", None, 1, "anna"],
            ["alias.moved", None, "prod", 1, 2, "anna"],
            ["retired", 1, None, None, None, "anna"],
        ]
        ids = {event.id for event in source.events()}
        assert {update["id"] for update in updates} <= ids
        assert COMMITTED not in {event.kind for event in source.events()}


def test_a_cache_of_answers_hears_of_a_version_that_is_retired(broker: BrokerServer) -> None:
    async def follow() -> list[ModelUpdate]:
        found: list[ModelUpdate] = []
        updates = ModelUpdates(f"kafka://{broker.hosts}", "digits", found.append)
        told = {"model": "digits", "change": "retired", "version": 1, "id": "1"}
        with topics.connect(f"kafka://{broker.hosts}") as cluster:
            producer = cluster.producer(codec=topics.JSON)

            def heard() -> bool:
                # It hears what comes after it began, and of no other model.
                producer.send(MODEL_UPDATED_TOPIC, {**told, "model": "other"})
                producer.send(MODEL_UPDATED_TOPIC, told)
                producer.flush()
                return bool(found)

            await soon(heard, "the update is heard")
        await updates.close()
        return found

    found = asyncio.run(follow())
    assert {(update.model, update.unasked_for(())) for update in found} == {("digits", (1,))}
