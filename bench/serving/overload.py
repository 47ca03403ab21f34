"""What is left of a service at ten times its load: `python -m bench.serving.overload`.

    python -m bench.serving.overload                 # about a minute
    python -m bench.serving.overload --seconds 5     # less

A model that takes 20 ms for each request, on its own, on two replicas behind the gateway. It
sleeps: so the generator and the gateway are not what is measured. First the capacity: answers a
second at 1.5 times of what two replicas can carry by the clock (100 a second). Then so many times
the capacity, from a generator in a process of its own, at a constant rate, for a bounded time. Each
reply must be an answer, or 503 with `Retry-After`.

Goodput is what is answered, beside the capacity; goal: at least 0.8. The p99 is that of what was
answered; goal: below the patience of the service (`--wait-max`) and a half. Tries: what replicas
were asked, for each request.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.coordination.machine import BUSY_LOAD, load_average
from bench.serving.cluster import QUICK, SMALL_SHARE, ServingCluster
from bench.serving.contestants import RESULTS, end_when_told
from bench.serving.histogram import Histogram
from bench.serving.replies import Reply, Shot
from bench.serving.steady import Result, Steady
from holdfast.models.drafts import VersionDraft
from holdfast.models.records import ModelKind, Signature, TensorSpec
from holdfast.serve.controller.controller import ask
from holdfast.serve.records import Limits, ServiceSpec
from holdfast.storage import bundles

NAME: Final = "twenty"
REPLICAS: Final = 2
COST_S: Final = 0.02
BY_THE_CLOCK: Final = REPLICAS / COST_S
WAIT_S: Final = 0.25
GOODPUT: Final = 0.8
CONNECTIONS: Final = 512

_CODE: Final = f"""
import time

def predict(inputs):
    time.sleep({COST_S})
    return {{"y": inputs["x"]}}
"""


def answered_or_refused(reply: Reply) -> str:
    """The check: an answer, or when to come again."""
    if reply.status == 200:
        return ""
    if reply.status == 503 and reply.header("retry-after"):
        return ""
    return f"status {reply.status}: {reply.body[:120]!r}"


def publish(cluster: ServingCluster) -> int:
    code = cluster.folder / "code"
    code.mkdir()
    (code / "twenty.py").write_text(_CODE)
    spec = (TensorSpec("x", "FP32", (-1, 4)),), (TensorSpec("y", "FP32", (-1, 4)),)
    signature = Signature(*spec, batches=False)
    bundle = bundles.push(cluster.cluster.blobs(), code).digest
    draft = VersionDraft(NAME, ModelKind.FUNCTION, signature, {}, bundle, "twenty:predict", {})
    return cluster.registry.publish(draft).number


def computed(cluster: ServingCluster) -> int:
    """What all replicas have computed so far."""
    secret = cluster.services.service(NAME).secret
    found = [ask(one, secret) for one in cluster.services.replicas(NAME).values()]
    return sum(counts.requests for one in found for counts in one.versions.values())


def refused(cluster: ServingCluster) -> int:
    secret = cluster.services.service(NAME).secret
    return sum(ask(one, secret).refused for one in cluster.services.replicas(NAME).values())


def measured(cluster: ServingCluster, rate: float, seconds: float, core: int) -> dict[str, Any]:
    """So many requests a second, for so long."""
    row = np.zeros((1, 4), dtype=np.float32)
    body = json.dumps({"x": row.tolist()}).encode()
    before, refused_before = computed(cluster), refused(cluster)
    with Steady(
        cluster.gateway,
        [Shot(f"/predict/{NAME}", body)],
        rate,
        answered_or_refused,
        connections=CONNECTIONS,
        timeout_s=30.0,
        core=core,
    ) as load:
        time.sleep(seconds)
        found: Result = load.stop()
    good = found.statuses[200]
    asked = computed(cluster) - before + refused(cluster) - refused_before
    accepted: Histogram = found.by_status[200]
    return {
        "rate": rate,
        "sent": found.sent,
        "answered": good,
        "refused": found.statuses[503],
        "failed": found.failed,
        "reasons": dict(found.reasons),
        "goodput": good / seconds,
        "p50_ms": accepted.percentile_ms(0.5),
        "p99_ms": accepted.percentile_ms(0.99),
        "refused_p99_ms": found.by_status[503].percentile_ms(0.99),
        "tries": asked / found.sent if found.sent else 0.0,
        "starved": found.starved,
    }


def measure(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    cluster = ServingCluster(folder)
    try:
        cluster.start_all()
        number = publish(cluster)
        limits = Limits(timeout_s=10.0, wait_s=given.wait)
        service = ServiceSpec(
            NAME, NAME, str(number), resources=SMALL_SHARE, policy=QUICK, limits=limits
        )
        cluster.serve(service, REPLICAS)
        capacity = measured(cluster, 1.5 * BY_THE_CLOCK, given.seconds, given.core)
        rows = [
            measured(cluster, times * capacity["goodput"], given.seconds, given.core)
            for times in given.times
        ]
        return {"capacity": capacity, "overload": dict(zip(given.times, rows, strict=True))}
    finally:
        cluster.close()


def show(found: Mapping[str, Any], wait_s: float) -> bool:
    """Whether the goals were reached."""
    capacity, reached = found["capacity"], True
    print(f"capacity: {capacity['goodput']:.1f} a second, p99 {capacity['p99_ms']:.0f} ms")
    print(f"{'load':>6}{'sent':>8}{'answered':>10}{'goodput':>9}{'p50':>8}{'p99':>8}{'tries':>7}")
    for times, row in found["overload"].items():
        ratio = row["goodput"] / capacity["goodput"]
        print(
            f"{times:>5g}x{row['sent']:>8}{row['answered']:>10}{ratio:>9.2f}{row['p50_ms']:>8.0f}"
            f"{row['p99_ms']:>8.0f}{row['tries']:>7.2f}  failed {row['failed']}"
            f"  refused within {row['refused_p99_ms']:.0f} ms (p99)"
        )
        bounded = row["p99_ms"] < 1500 * wait_s
        reached = reached and ratio >= GOODPUT and bounded and not row["failed"]
    print(f"goodput at least {GOODPUT} of the capacity, p99 below {1500 * wait_s:g} ms: ", end="")
    print("reached" if reached else "MISSED")
    return reached


def main(argv: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = options.add_argument
    add("--seconds", type=float, default=10.0, help="of each measurement")
    add("--times", type=float, nargs="+", default=[2.0, 10.0], help="the capacity")
    add("--wait", type=float, default=WAIT_S, help="the patience of the service, in seconds")
    add("--core", type=int, default=(os.cpu_count() or 1) - 1, help="of the load generator")
    add("--json", type=Path)
    given = options.parse_args(argv)
    end_when_told()
    RESULTS.mkdir(exist_ok=True)
    load = load_average()
    if load > BUSY_LOAD:
        print("the machine was busy: these figures are not to be quoted")
    with tempfile.TemporaryDirectory(prefix="overload-", dir=RESULTS) as folder:
        found = measure(Path(folder), given)
    reached = show(found, given.wait)
    if given.json:
        given.json.write_text(json.dumps({"load": load, **found}, indent=2))
    return 0 if reached else 1


if __name__ == "__main__":
    raise SystemExit(main())
