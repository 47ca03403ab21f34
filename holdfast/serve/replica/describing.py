"""What a replica says of itself over REST: metadata and metrics. Pure but for what it reads of
the engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.models.records import TensorSpec, Version
from holdfast.serve.cache import telling
from holdfast.serve.protocol.marks import EXTENSIONS, NAME, platform_of, release
from holdfast.serve.records import LATENCY_BOUNDS_MS, Counts
from holdfast.serve.replica.engine import Engine


def server() -> dict[str, Any]:
    """`GET /v2`."""
    return {"name": NAME, "version": release(), "extensions": list(EXTENSIONS)}


def model(engine: Engine, record: Version) -> dict[str, Any]:
    """`GET /v2/models/M`."""
    return {
        "name": record.model,
        "versions": [str(number) for number in sorted(engine.versions)],
        "platform": platform_of(record),
        "inputs": [_tensor(spec) for spec in record.signature.inputs],
        "outputs": [_tensor(spec) for spec in record.signature.outputs],
    }


def metrics(engine: Engine) -> str:
    """`GET /metrics`: Prometheus' text format."""
    return "".join(f"{line}\n" for line in _lines(engine))


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}


def _lines(engine: Engine) -> Iterator[str]:
    stats = engine.stats()
    service = f'service="{engine.service.name}"'
    gauges = {
        "waiting": (stats.waiting, "gauge", "Requests in the queue."),
        "running": (stats.running, "gauge", "Requests that are computed now."),
        "refused_total": (stats.refused, "counter", "Requests refused because too many waited."),
        "draining": (int(engine.draining), "gauge", "1 while the replica is going."),
    }
    for name, (value, kind, words) in gauges.items():
        yield f"# HELP holdfast_replica_{name} {words}"
        yield f"# TYPE holdfast_replica_{name} {kind}"
        yield f"holdfast_replica_{name}{{{service}}} {value}"
    yield from telling.lines(stats.cache, service)
    yield "# HELP holdfast_requests_total Requests that a version has answered."
    yield "# TYPE holdfast_requests_total counter"
    for number, counts in stats.versions.items():
        yield f'holdfast_requests_total{{{service},version="{number}"}} {counts.requests}'
    yield "# HELP holdfast_request_errors_total Requests on which a version failed."
    yield "# TYPE holdfast_request_errors_total counter"
    for number, counts in stats.versions.items():
        yield f'holdfast_request_errors_total{{{service},version="{number}"}} {counts.errors}'
    yield "# HELP holdfast_request_seconds Time from taking a request to its outputs."
    yield "# TYPE holdfast_request_seconds histogram"
    for number, counts in stats.versions.items():
        yield from _histogram(f'{service},version="{number}"', counts)


def _histogram(labels: str, counts: Counts) -> Iterator[str]:
    total = 0
    bounds = [*(f"{bound / 1000:g}" for bound in LATENCY_BOUNDS_MS), "+Inf"]
    for bound, count in zip(bounds, counts.buckets, strict=True):
        total += count
        yield f'holdfast_request_seconds_bucket{{{labels},le="{bound}"}} {total}'
    yield f"holdfast_request_seconds_count{{{labels}}} {total}"
