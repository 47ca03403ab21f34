"""What must be true of a service as its users want it. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

from holdfast.serve.records import WEIGHT_TOTAL, ServiceSpec
from holdfast.wire.errors import Full, Refused, Usage
from holdfast.wire.limits import SERVICE_REPLICAS_MAX
from holdfast.wire.resources import Resources

# API keys of one service: each request is compared with all of them.
SERVICE_KEYS_MAX: Final = 64
# A record's tensors that stay in it: Kafka takes a megabyte, and base64 makes four bytes of three.
PREDICTION_BLOB_BYTES_MAX: Final = 512 * 1024
# What may be the name of a header.
HEADER: Final = re.compile(r"[A-Za-z0-9!#$&'*+.^_`|~-]{1,200}")


def check(service: ServiceSpec) -> None:
    """`Usage` for numbers that make no sense, each with what would."""
    least, most, wanted = service.replicas_min, service.replicas_max, service.replicas_wanted
    if not 1 <= least <= most <= SERVICE_REPLICAS_MAX:
        raise Usage(
            f"{service.name} cannot have {least} to {most} replicas",
            why=f"1 to {SERVICE_REPLICAS_MAX} are possible, and the least is not above the most",
            fix="--min 1 --max 3",
        )
    if wanted is not None and not 1 <= wanted <= SERVICE_REPLICAS_MAX:
        raise Usage(
            f"{service.name} cannot have {wanted} replicas",
            why=f"1 to {SERVICE_REPLICAS_MAX} are possible",
            fix=f"holdfast scale {service.name} 1, or end it: holdfast unserve {service.name}",
        )
    if service.resources == Resources():
        raise Usage("a replica needs something: cpu, memory or gpu", fix="--cpu 1")
    if len(service.keys) + len(service.operator_keys) > SERVICE_KEYS_MAX:
        raise Full(
            f"{service.name} has {SERVICE_KEYS_MAX} API keys already",
            fix=f"remove one that nobody uses: holdfast key remove {service.name} KEY",
        )
    _check_policy(service)
    _check_limits(service)
    _check_predictions(service)
    _check_routing(service)


def check_same(before: ServiceSpec, after: ServiceSpec) -> None:
    """`Refused` for what the job of the replicas is made of: that never changes."""
    for what in ("name", "model", "resources", "queue", "priority"):
        if getattr(before, what) != getattr(after, what):
            raise Refused(
                f"the {what} of service {before.name} cannot change",
                why=f"it is {getattr(before, what)}, and its replicas were placed with that",
                fix=f"serve it under another name, or first: holdfast unserve {before.name}",
            )


def weights(given: Mapping[int, float]) -> dict[int, int]:
    """Parts of `WEIGHT_TOTAL` in the proportion of these weights; the largest comes first and
    takes what rounding leaves."""
    if not given:
        return {}
    if any(not math.isfinite(weight) or weight < 0 for weight in given.values()):
        raise Usage("a weight is a number from 0", fix="holdfast split SERVICE 3=90 4=10")
    total = math.fsum(given.values())
    if not total:
        raise Usage("all weights are 0", fix="holdfast split SERVICE 3=90 4=10")
    order = sorted(given, key=lambda version: (-given[version], version))
    parts = {version: int(given[version] / total * WEIGHT_TOTAL) for version in order}
    parts[order[0]] += WEIGHT_TOTAL - sum(parts.values())
    return parts


def _check_policy(service: ServiceSpec) -> None:
    policy = service.policy
    steps = policy.steps
    if any(not 0 < step < WEIGHT_TOTAL for step in steps) or list(steps) != sorted(set(steps)):
        raise Usage(
            "the canary's steps should grow from above 0 to below 100 percent",
            why=f"they are {', '.join(f'{step / WEIGHT_TOTAL:.2%}' for step in steps)}",
            fix="--canary 5,25,50",
        )
    if policy.hold_s < 0 or policy.ready_s <= 0:
        raise Usage(
            "a rollout's times are in seconds, and not below 0", fix="--hold 30s --ready 5m"
        )
    if policy.error_rate_max < 0 or policy.latency_ratio_max < 1 or policy.requests_min < 0:
        raise Usage(
            "what a rollout tolerates is not below that of the old version",
            fix="--errors-max 1% --slower-max 2 --requests-min 20",
        )
    guards = service.guards
    shares = (guards.nonfinite_max, guards.outside_max, guards.disagree_max, guards.shadow_share)
    if any(share is not None and not 0 <= share <= 1 for share in shares):
        raise Usage("a guard's share is from 0% to 100%", fix="--guard-nonfinite 0%")
    if guards.shift_max is not None and not guards.shift_max >= 0:
        raise Usage("a shift is in standard deviations, from 0", fix="--guard-shift 0.5")
    if any(not low <= high for low, high in guards.ranges.values()):
        raise Usage("a range begins with its lowest value", fix="--guard-range y=0:1")


def _check_limits(service: ServiceSpec) -> None:
    limits = service.limits
    least = min(limits.queue_max, limits.batch_max, limits.body_bytes_max, limits.bodies_bytes_max)
    if least < 1 or limits.timeout_s <= 0:
        raise Usage(
            "a service's queue, batch, body and time-out are above 0",
            fix="--queue-max 512 --batch 64 --body-max 16MiB --timeout 10s",
        )
    if limits.rate_per_s < 0 or service.cache_entries < 0 or limits.wait_s < 0:
        raise Usage(
            "a rate, a wait and a number of cached answers are not below 0",
            fix="--rate 0 --wait-max 0s --cache 0",
        )
    breaker = service.breaker
    if breaker.failures < 1 or breaker.requests_max < 1 or not 0 <= breaker.retry_percent <= 100:
        raise Usage(
            "a breaker counts from 1, and tries a share of the requests again",
            fix="--breaker-failures 5 --in-flight-max 65536 --retries 100%",
        )
    if breaker.connect_s <= 0 or not 0 < breaker.open_s <= breaker.open_s_max:
        raise Usage(
            "a breaker's times are above 0, and it is open for longer the next time",
            fix="--breaker-open 2s --breaker-open-max 20s --connect-timeout 1s",
        )


def _check_predictions(service: ServiceSpec) -> None:
    policy = service.predictions
    if not 0 < policy.sample <= 1:
        raise Usage(
            "the share of predictions that is told is above 0% and at most 100%",
            fix="--predictions-sample 10%, or none: --no-predictions-topic",
        )
    if not 0 <= policy.blob_bytes <= PREDICTION_BLOB_BYTES_MAX:
        raise Usage(
            "a tensor of a prediction goes to the blob store above 0 to 512KiB",
            why="a topic takes records of a megabyte",
            fix="--predictions-blob 64KiB",
        )
    if not policy.keep_s > 0:
        raise Usage("a topic keeps predictions for longer than 0 s", fix="--predictions-keep 7d")
    both = sorted({*policy.redact} & {*policy.keys})
    if both:
        raise Usage(
            f"{both[0]!r} cannot be redacted and name an entity",
            why="what names an entity is in the record",
            fix="leave one of them out: --predictions-redact off, --predictions-key off",
        )


def _check_routing(service: ServiceSpec) -> None:
    header = service.route_by
    if header and (not HEADER.fullmatch(header) or header.startswith("x-holdfast-")):
        raise Usage(
            f"requests cannot be routed by {header!r}",
            why="it is no name of a header, or one of ours, which gateways set themselves",
            fix="--route-by x-customer",
        )
