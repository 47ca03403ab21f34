"""The REST surface as its own OpenAPI document describes it, tried by schemathesis."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.replica_stage import ReplicaProcess, ReplicaStage

SEED = 5
EXAMPLES = 15


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaProcess]:
    stage = ReplicaStage(tmp_path_factory.mktemp("schema"))
    try:
        stage.hold(stage.publish_times(2))
        running = stage.start()
        running.await_ready()
        yield running
    finally:
        stage.close()


def test_the_document_is_valid_and_its_examples_are_answered(replica: ReplicaProcess) -> None:
    from openapi_spec_validator import validate

    document = replica.get("/openapi.json").json
    validate(document)
    tried = 0
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if method not in ("get", "post"):
                continue
            where = path.format(model="digits", version="1")
            content = operation.get("requestBody", {}).get("content", {})
            example = content.get("application/json", {}).get("example")
            body = None if example is None else json.dumps(example).encode()
            answer = replica.call(method.upper(), where, body)
            # What is refused always says what to do instead.
            wanted = 400 if where.endswith("/unload") else 200
            assert answer.status == wanted, (method, where, answer)
            tried += 1
    assert tried == 25


def test_schemathesis_finds_no_server_error_and_no_surprise(
    replica: ReplicaProcess, tmp_path: Path
) -> None:
    paths = replica.get("/openapi.json").json["paths"]
    try_schema(replica.http_port, tmp_path, len(paths))
    assert replica.alive and replica.ready()


def try_schema(port: int, folder: Path, operations: int) -> None:
    """Try everything that the document at this port describes, but for itself."""
    operations -= 1
    print(f"seed {SEED}")
    ended = subprocess.run(
        [
            str(Path(sys.executable).parent / "schemathesis"),
            "run",
            f"http://127.0.0.1:{port}/openapi.json",
            f"--seed={SEED}",
            f"--max-examples={EXAMPLES}",
            "--checks=all",
            # A schema cannot say that a list has as many elements as a shape: some of what fits it
            # is refused, as it should be.
            "--exclude-checks=positive_data_acceptance",
            "--no-color",
        ],
        capture_output=True,
        text=True,
        timeout=400,
        cwd=folder,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-6_000:] + ended.stderr[-2_000:]
    assert f"{operations} selected / {operations} total" in ended.stdout, ended.stdout[:2_000]
