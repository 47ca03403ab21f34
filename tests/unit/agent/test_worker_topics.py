"""What workers are told of topics, at their start and while they run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from holdfast.agent.topics import WorkerTopics
from holdfast.cluster import create
from holdfast.cluster.topics import TopicsRecord
from holdfast.coordination import Versioned
from holdfast.topics import connect
from holdfast.wire.errors import Usage
from holdfast.wire.worker_messages import FOLDER_VARIABLE, TOPICS_NAME, TOPICS_VARIABLE

HERE = TopicsRecord("kafka://here:9092", embedded=False)
NOT_YET = TopicsRecord()


def heard(topics: WorkerTopics, record: TopicsRecord) -> None:
    topics._on_config(Versioned(asdict(record), 1))


@pytest.fixture
def topics(tmp_path: Path) -> WorkerTopics:
    return WorkerTopics(create(tmp_path / "cluster"))


def worker(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / name
    (folder / "work").mkdir(parents=True)
    return folder


def test_a_worker_that_runs_learns_of_topics_that_are_used_for_the_first_time(
    topics: WorkerTopics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    early, gone = worker(tmp_path, "early"), worker(tmp_path, "gone")
    assert topics.environment(early) == topics.environment(gone) == {}
    heard(topics, NOT_YET)
    assert not (early / TOPICS_NAME).exists()
    (gone / "work").rmdir()
    gone.rmdir()
    heard(topics, HERE)
    assert (early / TOPICS_NAME).read_text() == HERE.address
    assert not gone.exists()
    assert (early / TOPICS_NAME).stat().st_mode & 0o077 == 0
    monkeypatch.delenv(TOPICS_VARIABLE, raising=False)
    monkeypatch.setenv(FOLDER_VARIABLE, str(early))
    with connect() as found:
        assert str(found.address) == HERE.address


def test_a_worker_that_starts_later_has_them_in_its_environment(
    topics: WorkerTopics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard(topics, HERE)
    late = worker(tmp_path, "late")
    assert topics.environment(late) == {TOPICS_VARIABLE: HERE.address}
    # What a job itself says goes before what its agent has written.
    monkeypatch.setenv(FOLDER_VARIABLE, str(late))
    monkeypatch.setenv(TOPICS_VARIABLE, "kafka://its-own:9092")
    with connect() as found:
        assert found.address.servers == ("its-own:9092",)


def test_without_a_word_of_topics_nobody_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOPICS_VARIABLE, raising=False)
    monkeypatch.setenv(FOLDER_VARIABLE, "/nowhere")
    with pytest.raises(Usage, match="no address of topics"):
        connect()
