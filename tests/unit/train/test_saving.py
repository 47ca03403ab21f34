"""Shares of checkpoints are written by a thread whose end never goes unnoticed."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.storage import Blobs, Part, open_store, put_part
from holdfast.train.states import checkpoints
from holdfast.train.states.checkpoints import Saver
from holdfast.train.states.state import TrainingState
from holdfast.wire.errors import BugError

WAIT_S = 60.0


class SaverReports:
    """What the saver says of itself."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.free = threading.Semaphore(0)

    def parts(self, attempt: int, _parts: tuple[Part, ...]) -> None:
        self.done.append(attempt)

    def saver(self, blobs: Blobs, done: checkpoints.Done | None = None) -> Saver:
        return Saver(blobs, done or self.parts, self.free.release)

    def wait(self) -> None:
        assert self.free.acquire(timeout=WAIT_S), "the saver has ended and said nothing"


def state() -> TrainingState:
    return TrainingState(1)


def test_a_share_is_saved_where_the_system_lets_nobody_change_priorities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: int) -> None:
        raise PermissionError("a sandbox")

    monkeypatch.setattr(os, "setpriority", refused)
    reports = SaverReports()
    saver = reports.saver(open_store(tmp_path))
    saver.take(1, 0, 1, state())
    reports.wait()
    assert (reports.done, saver.busy) == ([1], False)


def test_a_store_that_fails_in_a_way_that_nobody_foresaw_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [ValueError("once"), KeyError("twice")]

    def put(*given: Any, **more: Any) -> Part:
        if failures:
            raise failures.pop()
        return put_part(*given, **more)

    monkeypatch.setattr(checkpoints, "put_part", put)
    monkeypatch.setattr(checkpoints, "SAVE_AGAIN_S", 0.001)
    reports = SaverReports()
    reports.saver(open_store(tmp_path)).take(1, 0, 1, state())
    reports.wait()
    assert reports.done == [1]


def test_a_saver_that_died_is_noticed_by_the_training_at_its_next_share(tmp_path: Path) -> None:
    def dies(_attempt: int, _parts: tuple[Part, ...]) -> None:
        raise RuntimeError("a bug")

    reports = SaverReports()
    saver = reports.saver(open_store(tmp_path), dies)
    saver.take(1, 0, 1, state())
    reports.wait()
    assert not saver.busy
    with pytest.raises(BugError, match="the saving of a checkpoint has ended unexpectedly"):
        saver.take(2, 0, 1, state())
