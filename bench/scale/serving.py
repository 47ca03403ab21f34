"""`python -m bench.scale.serving [--json]`: what a request costs the gateway, and what a replica.

A whole cluster with two replicas of the small model behind the gateway, and wrk as fast as it can;
the processor time of Envoy and of the replicas, each by itself, for one request. The same for a
replica that is asked directly, and for its health. Then Envoy with many replicas and no requests:
what a health check costs it. And the files that a gateway makes, for many services and replicas.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from bench.scale.sessions import cpu_s
from bench.serving import work
from bench.serving.cluster import ServingCluster, await_
from bench.serving.connections import Address
from bench.serving.contestants import MARK
from bench.serving.replies import Shot
from bench.serving.wrk import wrk
from holdfast.serve.controller.controller import ask
from holdfast.serve.gateway.clusters import READY_PATH
from holdfast.serve.gateway.resources import parts, resources
from holdfast.serve.gateway.state import Front, GatewayState, KnownReplica, KnownService
from holdfast.serve.predictions import line_of
from holdfast.serve.protocol.tensors import InferAnswer, InferRequest
from holdfast.serve.records import (
    WEIGHT_TOTAL,
    Load,
    Loaded,
    Replica,
    RolloutPlan,
    RolloutStage,
    ServiceSpec,
    Variant,
    plan_path,
)
from holdfast.wire import documents
from tests.servers import free_port

SECONDS: Final = 6
CONNECTIONS: Final = 32
CHECKED: Final = 128
ASKED: Final = 500
TAKEN: Final = (10, 100, 300)
TAKEN_CHANGES: Final = 5
CHECKED_S: Final = 6.0
MODEL: Final = "small"
SERVICES_AND_REPLICAS: Final = ((1, 16), (1, 256), (100, 16), (100, 160), (1_000, 16))


# --- requests ------------------------------------------------------------------------------------


def processes(folder: Path) -> dict[str, list[int]]:
    """The processes of the cluster, by what they are."""
    found: dict[str, list[int]] = {}
    mark = f"{MARK}={folder}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if mark not in (entry / "environ").read_bytes().split(b"\0"):
                continue
        except OSError:
            continue
        kind = "other"
        if words[0].endswith(b"envoy"):
            kind = "envoy"
        elif b"holdfast.serve.replica" in words:
            kind = "replica"
        found.setdefault(kind, []).append(int(entry.name))
    return found


def used_s(pids: list[int]) -> float:
    return sum(cpu_s(pid) for pid in pids)


def under_load(cluster: ServingCluster, address: Address, shot: Shot) -> dict[str, float]:
    pids = processes(cluster.folder)
    core = max(os.sched_getaffinity(0))
    wrk(address, shot, 2, cluster.folder, core, CONNECTIONS)
    before = {kind: used_s(each) for kind, each in pids.items()}
    found = wrk(address, shot, SECONDS, cluster.folder, core, CONNECTIONS)
    if found.bad:
        raise SystemExit(f"{found.bad} answers were bad")
    spent = {kind: used_s(each) - before[kind] for kind, each in pids.items()}
    costs = {f"{kind}_us": round(1e6 * s / found.requests, 1) for kind, s in spent.items()}
    return {"requests_per_s": round(found.rate), **costs}


def requests() -> dict[str, Any]:
    shot = Shot(f"/v2/models/{MODEL}/infer", msgspec.json.encode(body()))
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-scale-") as name:
        cluster = ServingCluster(Path(name))
        try:
            cluster.start_all()
            cluster.serve_work(MODEL, 2)
            time.sleep(3.0)
            replica, secret = cluster.replicas(MODEL)[0], cluster.as_gateway(MODEL)
            return {
                "through the gateway": under_load(cluster, cluster.gateway, shot),
                "one replica, directly": under_load(
                    cluster, replica, replace(shot, headers=secret)
                ),
                "a replica's health": under_load(cluster, replica, Shot(READY_PATH, method="GET")),
                "counts for the controller": asked(cluster),
            }
        finally:
            cluster.close()


def asked(cluster: ServingCluster) -> dict[str, float]:
    """What one question for a replica's counts costs the controller."""
    (replica, *_) = cluster.services.replicas(MODEL).values()
    secret = cluster.services.service(MODEL).secret
    begun_s = time.process_time()
    for _ in range(ASKED):
        ask(replica, secret)
    return {"controller_us": round(1e6 * (time.process_time() - begun_s) / ASKED, 1)}


def body() -> dict[str, Any]:
    row = work.row(MODEL)
    tensor = {"name": work.INPUT, "shape": list(row.shape), "datatype": "FP32"}
    return {"inputs": [{**tensor, "data": row.reshape(-1).tolist()}]}


# --- health checks -------------------------------------------------------------------------------


class _Well(asyncio.Protocol):
    """A server that is always well, and says nothing else."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
        self._transport.write(answer * data.count(b"\r\n\r\n"))


@contextmanager
def healthy(count: int) -> Iterator[list[Address]]:
    """So many servers that are always well, in a thread."""
    addresses: list[Address] = [("127.0.0.1", free_port()) for _ in range(count)]
    ready, loop = threading.Event(), asyncio.new_event_loop()

    async def run() -> None:
        for host, port in addresses:
            await loop.create_server(_Well, host, port)
        ready.set()

    def live() -> None:
        loop.run_until_complete(run())
        loop.run_forever()

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    ready.wait(30)
    try:
        yield addresses
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


def checks() -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-scale-") as name:
        cluster = ServingCluster(Path(name))
        try:
            cluster.start_gateway()
            envoys = await_("an Envoy", lambda: processes(cluster.folder).get("envoy"))
            time.sleep(2.0)
            bare_s = idle_s(envoys)
            with healthy(CHECKED) as addresses:
                cluster.stand_in(MODEL, addresses)
                time.sleep(5.0)
                busy_s = idle_s(envoys)
        finally:
            cluster.close()
    checked = CHECKED * 4 * CHECKED_S
    return {
        "replicas": CHECKED,
        "envoy_idle_cores": round(bare_s / CHECKED_S, 4),
        "envoy_us_per_check": round(1e6 * (busy_s - bare_s) / checked, 1),
    }


def idle_s(pids: list[int]) -> float:
    before_s = used_s(pids)
    time.sleep(CHECKED_S)
    return used_s(pids) - before_s


# --- changes -------------------------------------------------------------------------------------


def taking() -> list[dict[str, float]]:
    """With many services: from a new plan of one of them until the gateway says that Envoy has
    taken it."""
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-scale-") as name:
        cluster = ServingCluster(Path(name))

        def is_applied(name: str) -> bool:
            return applied(cluster, name) == 1

        try:
            cluster.start_gateway()
            with healthy(2) as addresses:
                for count in TAKEN:
                    there = rows[-1]["services"] if rows else 0
                    for number in range(int(there), count):
                        cluster.stand_in(f"service-{number:04}", addresses)
                    last = f"service-{count - 1:04}"
                    await_("all are taken", partial(is_applied, last), 90.0)
                    time.sleep(3.0)
                    took = [changed_s(cluster, f"service-{n:04}") for n in range(TAKEN_CHANGES)]
                    median_ms = round(1e3 * statistics.median(took), 1)
                    rows.append({"services": count, "taken_ms": median_ms})
        finally:
            cluster.close()
    return rows


def applied(cluster: ServingCluster, service: str) -> int:
    return max(
        (one.applied.get(service, 0) for one in cluster.services.gateways().values()), default=0
    )


def changed_s(cluster: ServingCluster, service: str) -> float:
    path = plan_path(service)
    fact = cluster.facts.read(path, fresh=True)
    assert fact is not None
    plan = documents.from_bytes(path, RolloutPlan, fact.data)
    variants = (
        Variant(f"variant-{plan.number}", 1, WEIGHT_TOTAL),
    )  # its name stands in the routes
    after = replace(plan, number=plan.number + 1, variants=variants)
    begun_s = time.monotonic()
    transaction = cluster.facts.transaction(lambda: False)
    transaction.replace(path, documents.to_bytes(after), fact.version)
    transaction.commit()
    while applied(cluster, service) < after.number:
        if time.monotonic() > begun_s + 60.0:
            raise SystemExit(f"{service}: a change was not taken within a minute")
        time.sleep(0.005)
    return time.monotonic() - begun_s


# --- files, and lines of the prediction log ------------------------------------------------------


def known(number: int, replicas: int) -> KnownService:
    name = f"service-{number:04}"
    variants = (Variant("stable", 7, WEIGHT_TOTAL // 2), Variant("canary", 8, WEIGHT_TOTAL // 2))
    held = {7: Loaded(Load.READY), 8: Loaded(Load.READY)}
    there = tuple(
        KnownReplica(
            Replica(name, n, f"10.1.{n >> 8}.{n & 255}", 9000, 9001, region="eu", versions=held)
        )
        for n in range(replicas)
    )
    plan = RolloutPlan(3, RolloutStage.SHIFTING, hold=(7, 8), variants=variants, stable=7)
    return KnownService(ServiceSpec(name, "model", "prod"), plan, there)


def cpu_ms(act: Callable[[], object], times: int) -> float:
    gc.collect()
    taken = []
    for _ in range(times):
        begun_s = time.process_time()
        act()
        taken.append((time.process_time() - begun_s) * 1_000)
    return statistics.median(taken)


def files() -> list[dict[str, Any]]:
    rows = []
    for services, replicas in SERVICES_AND_REPLICAS:
        state = GatewayState(
            Front("10.0.0.1", 8080, "eu"), tuple(known(n, replicas) for n in range(services))
        )
        made = parts(state)
        changed = GatewayState(state.front, (known(0, replicas - 1), *state.services[1:]))
        found = resources(state, made)

        def one_changed(changed: GatewayState = changed, made: Any = made) -> object:
            return resources(changed, parts(changed, made))

        rows.append(
            {
                "services": services,
                "replicas_each": replicas,
                "bytes": sum(len(msgspec.json.encode(one)) for one in found.values()),
                "all_ms": round(cpu_ms(partial(resources, state), 3), 1),
                "one_changed_ms": round(cpu_ms(one_changed, 5), 1),
            }
        )
    return rows


def predictions() -> dict[str, float]:
    request = InferRequest(
        "digits",
        3,
        32 * "a",
        {"x": np.ones((1, 16), np.float32) / 3},
        variant="stable",
        region="eu",
    )
    answer = InferAnswer("digits", 3, 32 * "a", {"y": np.ones((1, 10), np.float32) / 7})
    line = line_of(1_700_000_000.123456, request, answer, 0.812)
    ms = cpu_ms(lambda: [line_of(1.7e9, request, answer, 0.8) for _ in range(2_000)], 5)
    return {"bytes": len(line), "line_us": round(1e3 * ms / 2_000, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="JSON instead of lines")
    sections: dict[str, Callable[[], Any]] = {
        "requests": requests,
        "checks": checks,
        "taking": taking,
        "files": files,
        "predictions": predictions,
    }
    parser.add_argument("--only", choices=sections, nargs="+", default=list(sections))
    options = parser.parse_args()
    found = {}
    for name in options.only:
        found[name] = sections[name]()
        if not options.json:
            print(name, json.dumps(found[name], indent=1), flush=True)
    if options.json:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
