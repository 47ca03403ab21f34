"""Who may come in through a gateway: keys, rates, TLS."""

from __future__ import annotations

import hashlib
import http.client
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.serve.records import Limits
from holdfast.system.certificates import Authority
from tests.conftest import require_service
from tests.integration.gateway_world import GatewayProcess, World
from tests.servers.envoy import envoy_missing
from tests.waiting import eventually


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    require_service(envoy_missing())
    made = World(tmp_path_factory.mktemp("access"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def gateway(world: World) -> GatewayProcess:
    return world.gateway()


def infer(name: str) -> str:
    return f"/v2/models/{name}/infer"


def test_only_a_known_key_opens_a_service_with_keys(world: World, gateway: GatewayProcess) -> None:
    name = "locked"
    # Lengths around the blocks of SHA-256: its padding has one, two or three cases there.
    keys = ["k", "open-sesame", "x" * 55, "y" * 56, "z" * 64, "w" * 200]
    digests = tuple(hashlib.sha256(key.encode()).hexdigest() for key in keys)
    world.service(name, keys=digests)
    world.replica(1, service=name)
    world.applied(world.plan(name), name)
    gateway.served(infer(name), headers={"x-api-key": keys[0]})
    for key in keys:
        for headers in ({"x-api-key": key}, {"authorization": f"Bearer {key}"}):
            for _ in range(2):  # computed, then remembered
                reply = gateway.ask(infer(name), headers=headers)
                assert reply.status == 200, (key, reply)
                seen = reply.json()["headers"]
                assert "x-api-key" not in seen
                assert "authorization" not in seen
    missing, wrong = "an API key is needed", "this API key is wrong"
    refusals: list[tuple[dict[str, str], str]] = [
        ({}, missing),
        ({"authorization": "Basic k"}, missing),
        ({"x-api-key": "K"}, wrong),
        ({"authorization": "Bearer K"}, wrong),
        ({"x-api-key": digests[0]}, wrong),
        ({"x-api-key": "x" * 5_000}, wrong),
    ]
    for headers, said in refusals:
        reply = gateway.ask(infer(name), headers=headers)
        assert reply.status == 401, headers
        assert reply.json()["error"].startswith(said), headers
        assert name not in reply.json()["error"], "who has no key is not told what there is"
    assert gateway.ask(infer(name), headers={"x-holdfast-service": name}).status == 401
    grpc = {"content-type": "application/grpc", "x-holdfast-service": name}
    refused = gateway.ask("/inference.GRPCInferenceService/ServerLive", headers=grpc)
    assert refused.headers["grpc-status"] == "16"


def test_a_rate_is_one_for_all_paths_of_a_service_and_bounds_no_other(
    world: World, gateway: GatewayProcess
) -> None:
    name = "limited"
    world.service(name, limits=Limits(rate_per_s=5.0))
    world.service(f"{name}-free")
    world.replica(1, service=name)
    world.replica(2, service=f"{name}-free")
    world.applied(world.plan(name), name)
    world.applied(world.plan(f"{name}-free"), f"{name}-free")
    gateway.served(infer(name))
    begun_s = time.monotonic()
    paths = [infer(name), f"/predict/{name}"]
    replies = [gateway.ask(paths[turn % 2]) for turn in range(60)]
    took_s = time.monotonic() - begun_s
    good = sum(reply.status == 200 for reply in replies)
    refused = [reply for reply in replies if reply.status == 429]
    assert good + len(refused) == 60
    assert good <= 5 + 5 * took_s + 1, (good, took_s)
    assert refused
    assert refused[0].headers["retry-after"] == "1"
    assert "rate" in refused[0].json()["error"]
    assert {gateway.ask(infer(f"{name}-free")).status for _ in range(60)} == {200}


def test_tls_is_spoken_and_a_new_certificate_is_taken(world: World, tmp_path: Path) -> None:
    name = "secured"
    authority = Authority.make(tmp_path / "authority", "holdfast")
    world.service(name)
    world.replica(1, service=name)
    plan = world.plan(name)
    files = [tmp_path / "live" / file for file in ("chain.pem", "key.pem")]
    _certify(authority, files)
    words = ("--tls-certificate", str(files[0]), "--tls-key", str(files[1]))
    gateway = _secure(world, words)
    world.applied(plan, name, "secure")
    shown = world.shown("secure")
    assert shown is not None
    assert shown.address == f"https://127.0.0.1:{gateway.port}"
    context = ssl.create_default_context(cadata=authority.trust_pem.decode())

    def answered() -> tuple[int, object]:
        link = http.client.HTTPSConnection("127.0.0.1", gateway.port, context=context, timeout=30)
        link.request("POST", infer(name), b"{}")
        shown = link.sock.getpeercert()
        assert shown
        serial = shown["serialNumber"]
        status = link.getresponse().status
        link.close()
        return status, serial

    eventually(lambda: answered()[0] == 200, "it answers over TLS")
    serial = answered()[1]
    _certify(authority, files)
    eventually(lambda: answered()[1] != serial, "the new certificate is shown")


def _secure(world: World, words: tuple[str, ...]) -> GatewayProcess:
    gateway = GatewayProcess(world, "secure", words)
    world.gateways.append(gateway)
    gateway.launch()
    return gateway


def _certify(authority: Authority, files: list[Path]) -> None:
    """A certificate for loopback, put in place by moves."""
    credentials = authority.serve(("127.0.0.1",))
    files[0].parent.mkdir(exist_ok=True)
    for path, content in zip(
        files, (credentials.certificate_pem, credentials.key_pem), strict=True
    ):
        draft = path.with_suffix(".new")
        draft.write_bytes(content)
        draft.replace(path)
