"""Published clients against a real replica process, unchanged: NVIDIA's and KServe's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.models.records import Signature, TensorSpec
from tests.conftest import require_service
from tests.integration.replica_stage import ReplicaProcess, ReplicaStage

PROGRAMS = Path(__file__).parent / "serving_clients"
CLIENTS = Path(sys.prefix) / "clients" / "bin" / "python"

SIGNATURE = Signature(
    (
        TensorSpec("x", "FP32", (-1, 4)),
        TensorSpec("half", "FP16", (-1, 1)),
        TensorSpec("word", "BYTES", (-1, 1)),
        TensorSpec("flag", "BOOL", (-1, 1)),
    ),
    (
        TensorSpec("y", "FP32", (-1, 4)),
        TensorSpec("half_out", "FP16", (-1, 1)),
        TensorSpec("word_out", "BYTES", (-1, 1)),
        TensorSpec("flag_out", "BOOL", (-1, 1)),
        TensorSpec("count", "INT64", (-1,)),
    ),
)
# One of each kind of tensor.
CODE = """
    import numpy as np

    def predict(inputs):
        words = inputs["word"]
        return {
            "y": inputs["x"] * np.float32(2),
            "half_out": inputs["half"] + np.float16(1),
            "word_out": np.array([[word.upper()] for (word,) in words], object),
            "flag_out": ~inputs["flag"],
            "count": np.array([len(word) for (word,) in words]),
        }
"""
EXPECTED = {
    "y": ["float32", [2, 4], [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0]],
    "half_out": ["float16", [2, 1], [1.5, 2.5]],
    # Letters of ASCII: these are bytes, not texts.
    "word_out": ["HELLO", "GRößE"],
    "flag_out": ["bool", [2, 1], [False, True]],
    "count": ["int64", [2], [5, 7]],
}


def clients_missing() -> str:
    return "" if CLIENTS.exists() else "the published clients are not installed: sh .ci/clients"


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaProcess]:
    require_service(clients_missing())
    stage = ReplicaStage(tmp_path_factory.mktemp("clients"))
    try:
        # Without an example: its file has tensors, and texts are none.
        number = stage.publish(CODE, signature=SIGNATURE).number
        stage.hold(number)
        running = stage.start()
        running.await_ready()
        yield running
    finally:
        stage.close()


def seen_by(program: str, *arguments: str) -> Any:
    """What a program of another environment saw."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        [str(CLIENTS), str(PROGRAMS / program), *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4_000:]
    return json.loads(ended.stdout.splitlines()[-1])


def addresses(replica: ReplicaProcess) -> tuple[str, str]:
    return f"127.0.0.1:{replica.http_port}", f"127.0.0.1:{replica.grpc_port}"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_tritonclient_works_unchanged(protocol: str, replica: ReplicaProcess) -> None:
    address = addresses(replica)[protocol == "grpc"]
    seen = seen_by("triton_calls.py", protocol, address)
    assert seen["live"] and seen["ready"] and seen["model_ready"] and seen["version_ready"]
    assert seen["missing_ready"] is False
    assert seen["server"]["name"] == "holdfast"
    assert "binary_tensor_data" in seen["server"]["extensions"]
    model = seen["model"]
    assert (model["name"], model["versions"]) == ("digits", ["1"])
    described = [(each["name"], each["datatype"]) for each in model["inputs"]]
    assert described == [(spec.name, spec.datatype) for spec in SIGNATURE.inputs]
    assert [int(size) for size in model["inputs"][0]["shape"]] == [-1, 4]
    for form in ("raw", "json") if protocol == "http" else ("raw",):
        answer = seen[form]
        assert (answer["id"], answer["model"], answer["version"]) == ("r1", "digits", "1")
        assert answer["outputs"] == EXPECTED
        assert answer["all"] == list(EXPECTED.values())
    judge_errors(protocol, seen["errors"])


def judge_errors(protocol: str, errors: dict[str, Any]) -> None:
    bad, unknown = {
        "http": ("400", "404"),
        "grpc": ("StatusCode.INVALID_ARGUMENT", "StatusCode.NOT_FOUND"),
    }[protocol]
    statuses = {name: error["status"] for name, error in errors.items()}
    assert statuses == {
        "shape": bad,
        "missing_input": bad,
        "output": bad,
        "model": unknown,
        "version": unknown,
        "metadata": unknown,
    }
    assert "[1, 3]" in errors["shape"]["message"] and "[any, 4]" in errors["shape"]["message"]
    assert "'half' is missing" in errors["missing_input"]["message"]


def test_kserve_works_unchanged(replica: ReplicaProcess) -> None:
    seen = seen_by("kserve_calls.py", *addresses(replica))
    for protocol, bad, unknown in (
        ("rest", 400, 404),
        ("grpc", "INVALID_ARGUMENT", "NOT_FOUND"),
    ):
        part = seen[protocol]
        assert part["live"] and part["ready"] and part["model_ready"]
        for form in ("raw", "json") if protocol == "rest" else ("raw",):
            answer = part[form]
            assert (answer["id"], answer["model"]) == ("r1", "digits")
            # Over REST this client does not read the version.
            assert answer["version"] == (None if protocol == "rest" else "1")
            assert answer["outputs"] == EXPECTED
        assert part["shape"][0] == bad and "[2, 3]" in part["shape"][1]
        assert part["model"][0] == unknown and "nobody" in part["model"][1]
