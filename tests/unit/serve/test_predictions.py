"""The prediction log: lines on disk, never a wait and never an error for a request."""

from __future__ import annotations

import json
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.serve.predictions import (
    FILE,
    PREDICTIONS_ELEMENTS_MAX,
    PredictionLog,
    digest_of,
    line_of,
)
from holdfast.serve.protocol.tensors import InferAnswer, InferRequest
from holdfast.wire.limits import PREDICTIONS_FILES_KEPT
from tests.waiting import eventually


def prediction(number: int = 1, size: int = 2) -> tuple[InferRequest, InferAnswer]:
    inputs: dict[str, Any] = {
        "x": np.full((1, size), number, np.float32),
        "w": np.array([b"text", b"\xff"], object),
    }
    request = InferRequest("m", 3, str(number), inputs, variant="canary", region="north")
    return request, InferAnswer("m", 3, str(number), {"y": np.array([number])})


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_says_who_asked_for_what_and_what_was_answered(tmp_path: Path) -> None:
    log = PredictionLog(tmp_path / "logs")
    log.note(*prediction(7), 1.25)
    log.close()
    (line,) = lines(tmp_path / "logs" / FILE)
    assert (line["id"], line["model"], line["version"]) == ("7", "m", 3)
    assert (line["variant"], line["region"], line["ms"], line["cached"]) == (
        "canary",
        "north",
        1.25,
        False,
    )
    assert line["inputs"]["x"] == {"shape": [1, 2], "data": [7.0, 7.0]}
    assert line["inputs"]["w"] == {"shape": [2], "data": ["text", "\ufffd"]}
    assert line["outputs"]["y"] == {"shape": [1], "data": [7]}
    assert (
        line["digest"] == digest_of(prediction(7)[0].inputs) != digest_of(prediction(8)[0].inputs)
    )
    assert log.written == 1 and log.dropped == 0


def test_a_large_tensor_is_cut_and_its_shape_told() -> None:
    line = json.loads(line_of(1.0, *prediction(size=10_000), 1.0))
    assert line["inputs"]["x"]["shape"] == [1, 10_000]
    assert len(line["inputs"]["x"]["data"]) == PREDICTIONS_ELEMENTS_MAX


def test_lines_reach_the_file_without_anybody_closing_it(tmp_path: Path) -> None:
    log = PredictionLog(tmp_path)
    for number in range(100):
        log.note(*prediction(number), 1.0)
    eventually(lambda: log.written == 100, "everything is written")
    assert [line["id"] for line in lines(log.path)] == [str(number) for number in range(100)]
    log.close()


def test_a_trickle_of_requests_does_not_keep_lines_from_the_file(tmp_path: Path) -> None:
    log = PredictionLog(tmp_path)
    noted = 0
    while not log.written:
        log.note(*prediction(noted), 1.0)
        noted += 1
        time.sleep(0.01)  # pause: a trickle
        assert noted < 1_000, "nothing is written while requests come"
    log.close()
    assert log.written == noted


def test_a_full_file_is_set_aside_and_only_so_many_are_kept(tmp_path: Path) -> None:
    log = PredictionLog(tmp_path, file_bytes_max=2_000, flush_s=0.0)

    def written(count: int) -> bool:
        return log.written == count

    for number in range(60):
        log.note(*prediction(number), 1.0)
        eventually(partial(written, number + 1), "it is written")
    log.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [FILE, *(f"{FILE}.{n}" for n in range(1, PREDICTIONS_FILES_KEPT + 1))]
    assert all(path.stat().st_size <= 2_000 for path in tmp_path.iterdir())
    kept = [
        int(line["id"])
        for name in [*(f"{FILE}.{n}" for n in range(PREDICTIONS_FILES_KEPT, 0, -1)), FILE]
        for line in lines(tmp_path / name)
    ]
    assert kept == list(range(kept[0], 60))


def test_what_does_not_fit_in_the_queue_is_dropped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    write = PredictionLog._write

    def slow(self: PredictionLog, held: list[bytes]) -> None:
        gate.wait(60)
        write(self, held)

    monkeypatch.setattr(PredictionLog, "_write", slow)
    log = PredictionLog(tmp_path, waiting_max=8)
    for number in range(10_000):
        log.note(*prediction(number), 1.0)
        if log.dropped:
            break
    assert log.dropped == 1
    gate.set()
    log.close()
    assert log.written == number


def test_a_folder_that_cannot_be_written_loses_lines_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file, where the folder should be")
    log = PredictionLog(tmp_path / "logs")
    log.note(*prediction(1), 1.0)
    eventually(lambda: log.dropped == 1, "the line was given up")
    (tmp_path / "logs").unlink()
    log.note(*prediction(2), 1.0)
    log.close()
    assert [line["id"] for line in lines(log.path)] == ["2"]


def test_a_redacted_input_is_neither_in_the_line_nor_in_its_digest() -> None:
    lines = [json.loads(line_of(1.0, *prediction(number), 1.0, redact=("x",))) for number in (1, 2)]
    assert lines[0]["inputs"]["x"] == {"shape": [1, 2], "redacted": True}
    assert lines[0]["inputs"]["w"]["data"][0] == "text"
    assert lines[0]["digest"] == lines[1]["digest"]


def test_a_request_without_an_id_of_its_own_has_the_gateways() -> None:
    request, answer = prediction()
    answer.id, request.trace = "", "from-the-gateway"
    assert json.loads(line_of(1.0, request, answer, 1.0))["id"] == "from-the-gateway"
