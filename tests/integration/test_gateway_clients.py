"""Published clients through a gateway before two services at once, without a header of ours."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import require_service
from tests.integration.served_pair import ServedPair
from tests.integration.test_serving_clients import clients_missing, seen_by
from tests.servers.envoy import envoy_missing

pytestmark = pytest.mark.engines

LOUD = ["HELLO", "WORLD"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPair]:
    require_service(envoy_missing() or clients_missing())
    operator = (hashlib.sha256(b"operator").hexdigest(),)
    made = ServedPair(tmp_path_factory.mktemp("pair"), operator_keys=operator)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_tritonclient_works_before_two_services(protocol: str, pair: ServedPair) -> None:
    seen = seen_by("pair_calls.py", protocol, pair.address)
    assert seen["live"] and seen["ready"] and seen["server"] == "holdfast"
    for name, model, answer in (
        ("digits", "digits", True),
        ("words", "shout", LOUD),
        ("shout", "shout", LOUD),
    ):
        part = seen[name]
        assert part["ready"] and part["metadata"] == model
        config = part["config"].get("config", part["config"])
        assert (config["name"], config["backend"]) == (model, "holdfast")
        kind = "TYPE_FP32" if name == "digits" else "TYPE_STRING"
        assert [each["data_type"] for each in config["input"]] == [kind]
        assert part["answers"] == [answer] * 3
        counted = part["statistics"]["model_stats"][0]
        assert counted["name"] == model and int(counted["inference_count"]) >= 3
        assert int(counted["inference_stats"]["success"]["ns"]) > 0
        for refused in (part["load"], part["unload"]):
            assert refused["status"] == ("403" if protocol == "http" else PERMISSION_DENIED)
            assert "--operator" in refused["message"]
    assert seen["operator"][0] == "no error"
    assert "holdfast unserve digits" in seen["operator"][1]["message"]
    models = seen["index"] if protocol == "http" else seen["index"]["models"]
    listed = sorted((each["name"], each["version"], each["state"]) for each in models)
    assert listed == [("digits", "1", "READY"), ("words", "1", "READY")]
    for refused in seen["nobody"]:
        assert refused["status"] == ("404" if protocol == "http" else "StatusCode.NOT_FOUND")
        assert "service" in refused["message"]
    for stream in seen.get("streams", ()):
        # A stream is of one model: another one gets an error, and the stream goes on.
        assert [stream[0], stream[1], stream[3]] == [LOUD, LOUD, LOUD]
        assert "there is no model 'digits' here" in stream[2]


PERMISSION_DENIED = "StatusCode.PERMISSION_DENIED"


def test_tritonclient_works_asynchronously_before_two_services(pair: ServedPair) -> None:
    seen = seen_by("pair_calls.py", "aio", pair.address)
    for protocol in ("http", "grpc"):
        part: dict[str, Any] = seen[protocol]
        assert part == {"live": True, "digits": [True] * 3, "words": [LOUD] * 3}
    assert seen["stream"] == [LOUD] * 3


def test_kserve_works_before_two_services(pair: ServedPair) -> None:
    seen = seen_by("pair_calls.py", "kserve", pair.address)
    assert seen["live"] == seen["ready"] == [True, True]
    for name, answer in (("digits", True), ("words", LOUD)):
        assert seen[name] == {"ready": [True, True], "rest": answer, "grpc": answer}
    one, two, ready = seen["v1"]
    assert one == {"predictions": [[2.0, 4.0, 6.0, 8.0]]}
    assert two == {"predictions": [["HELLO"]]}
    assert ready is True
