"""What routing by a key does to replicas' caches: `python -m bench.serving.keyed`.

    python -m bench.serving.keyed                    # about a minute
    python -m bench.serving.keyed --requests 2000    # less

A model on three replicas behind the gateway; each keeps 200 answers. 450 entities are asked for,
some far more often than others (Zipf), on 8 connections. First as services are (no header chooses
the replica), then with `--route-by x-entity`. Hits are the replicas' own count. Each answer is
checked.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from bench.coordination.machine import BUSY_LOAD, load_average
from bench.serving.cluster import QUICK, SMALL_SHARE, ServingCluster, await_
from bench.serving.contestants import RESULTS, end_when_told
from bench.serving.overload import NAME, publish
from holdfast.serve.controller.controller import ask
from holdfast.serve.records import CacheCounts, ServiceSpec

REPLICAS: Final = 3
KEPT: Final = 200
ENTITIES: Final = 450
CONNECTIONS: Final = 8
HEADER: Final = "x-entity"


def counts(cluster: ServingCluster) -> list[CacheCounts]:
    secret = cluster.services.service(NAME).secret
    return [ask(one, secret).cache for one in cluster.services.replicas(NAME).values()]


def hit_rate(before: Sequence[CacheCounts], after: Sequence[CacheCounts]) -> float:
    hits = sum(one.hits for one in after) - sum(one.hits for one in before)
    misses = sum(one.misses for one in after) - sum(one.misses for one in before)
    return hits / (hits + misses)


def drawn(requests: int, seed: int) -> list[int]:
    weights = list(accumulate(1 / (1 + entity) ** 0.8 for entity in range(ENTITIES)))
    return random.Random(seed).choices(range(ENTITIES), cum_weights=weights, k=requests)


def asked(cluster: ServingCluster, entities: Sequence[int]) -> list[float]:
    """Ask for each of them; how long each took."""
    link = http.client.HTTPConnection(*cluster.gateway, timeout=30)
    took = []
    for entity in entities:
        row = [[float(entity), 0.0, 0.0, 0.0]]
        started_s = time.perf_counter()
        headers = {HEADER: str(entity), "content-type": "application/json"}
        link.request("POST", f"/predict/{NAME}", json.dumps({"x": row}), headers)
        answer = link.getresponse()
        body = answer.read()
        took.append(time.perf_counter() - started_s)
        if answer.status != 200 or json.loads(body) != {"y": row}:
            raise SystemExit(f"a wrong answer: {answer.status} {body[:200]!r}")
    link.close()
    return took


def measured(cluster: ServingCluster, requests: int, seed: int) -> dict[str, float]:
    entities = drawn(requests, seed)
    before = counts(cluster)
    with ThreadPoolExecutor(CONNECTIONS) as clients:
        parts = (entities[first::CONNECTIONS] for first in range(CONNECTIONS))
        took = sorted(
            one for part in clients.map(lambda e: asked(cluster, e), parts) for one in part
        )
    return {
        "hit_rate": hit_rate(before, counts(cluster)),
        "mean_ms": 1e3 * sum(took) / len(took),
        "p50_ms": 1e3 * took[len(took) // 2],
    }


def measure(folder: Path, requests: int) -> dict[str, dict[str, float]]:
    cluster = ServingCluster(folder)
    try:
        cluster.start_all()
        number = publish(cluster)
        service = ServiceSpec(NAME, NAME, str(number), resources=SMALL_SHARE, policy=QUICK)
        cluster.serve(replace(service, cache_entries=KEPT), REPLICAS)
        measured(cluster, requests, 1)  # until the caches are full
        found = {"whoever has least to do": measured(cluster, requests, 2)}
        cluster.services.update(NAME, lambda one: replace(one, route_by=HEADER), "by entity")
        gateway = cluster.folder / "cluster" / "gateways" / "bench" / "cds" / "clusters.json"
        await_("Envoy has the table", lambda: "maglev" in gateway.read_text() or None)
        measured(cluster, requests, 3)
        found[f"--route-by {HEADER}"] = measured(cluster, requests, 4)
        return found
    finally:
        cluster.close()


def show(found: dict[str, dict[str, Any]]) -> None:
    print(f"| {REPLICAS} replicas, {KEPT} answers each, {ENTITIES} entities | hits | mean | p50 |")
    print("|---|---|---|---|")
    for name, row in found.items():
        print(
            f"| {name} | {row['hit_rate']:.1%} | {row['mean_ms']:.1f} ms | {row['p50_ms']:.1f} ms |"
        )


def main(argv: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--requests", type=int, default=6_000)
    options.add_argument("--json", type=Path)
    given = options.parse_args(argv)
    end_when_told()
    RESULTS.mkdir(exist_ok=True)
    if load_average() > BUSY_LOAD:
        print("the machine was busy: its times are not to be quoted; hits are counts")
    with tempfile.TemporaryDirectory(prefix="keyed-", dir=RESULTS) as folder:
        found = measure(Path(folder), given.requests)
    show(found)
    if given.json:
        given.json.write_text(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
