"""How many replicas a service should have, by how busy they were. Up fast, down slowly.

Each replica carries `AUTOSCALE_IN_FLIGHT` requests at a time with ease. More replicas come as soon
as the mean of the last seconds asks for them; fewer when the peak of a whole minute does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from holdfast.serve.records import ServiceSpec
from holdfast.serve.rollout.facts import LoadSample

# Requests that a replica carries at a time with ease.
AUTOSCALE_IN_FLIGHT: Final = 8
# The last seconds ask for more replicas; a whole minute must ask for fewer.
AUTOSCALE_UP_S: Final = 6.0
AUTOSCALE_DOWN_S: Final = 60.0
# Refused requests and slow answers tell that more are needed, but not how many: so much at a time.
AUTOSCALE_GROWTH: Final = 1.5
# An answer is slow when it takes this part of the service's time-out.
AUTOSCALE_SLOW_FRACTION: Final = 0.5


def is_automatic(service: ServiceSpec) -> bool:
    """Whether anything is to be decided: users have not said a number, and there is a choice."""
    return service.replicas_wanted is None and service.replicas_min < service.replicas_max


def wanted(
    service: ServiceSpec,
    current: int,
    samples: Sequence[LoadSample],
    now_s: float,
    *,
    may_shrink: bool,
) -> tuple[int, str]:
    """How many replicas there should be, and why. `may_shrink` False: a rollout is on, which must
    not end with less than it began with; whoever asked for fewer gets them when it is over."""
    count, why = _wanted(service, current, samples, now_s)
    if count == current or (count < current and not may_shrink):
        return current, ""
    return count, why


def _wanted(
    service: ServiceSpec, current: int, samples: Sequence[LoadSample], now_s: float
) -> tuple[int, str]:
    least, most = service.replicas_min, max(service.replicas_min, service.replicas_max)
    if service.replicas_wanted is not None:
        return service.replicas_wanted, f"its user asked for {replicas(service.replicas_wanted)}"
    bounded = min(max(current, least), most)
    if bounded != current:
        return bounded, f"it may have {least} to {replicas(most)}"
    if least == most:
        return current, ""
    more, why = _more(service, current, samples, now_s)
    if more > current:
        return min(more, most), why
    fewer, why = _fewer(current, samples, now_s)
    return max(fewer, least), why


def _more(
    service: ServiceSpec, current: int, samples: Sequence[LoadSample], now_s: float
) -> tuple[int, str]:
    recent = [sample for sample in samples if sample.at_s > now_s - AUTOSCALE_UP_S]
    if not recent:
        return current, ""
    mean = sum(sample.in_flight for sample in recent) / len(recent)
    need = math.ceil(mean / AUTOSCALE_IN_FLIGHT)
    if need > current:
        return need, (
            f"{mean:.0f} requests at a time are {AUTOSCALE_IN_FLIGHT} for each of {replicas(need)}"
        )
    grown = max(current + 1, math.ceil(current * AUTOSCALE_GROWTH))
    if recent[-1].replicas < current:
        return current, ""  # those that were asked for are still to come
    refused = sum(sample.refused for sample in recent)
    if refused:
        return grown, f"{refused} requests were refused because queues were full"
    slow_ms = AUTOSCALE_SLOW_FRACTION * 1000 * service.limits.timeout_s
    if len(recent) > 1 and all(sample.slow_ms > slow_ms for sample in recent):
        return grown, (
            f"the p99 was above {slow_ms:.0f} ms, a part of {AUTOSCALE_SLOW_FRACTION:g} "
            f"of the time-out, for {AUTOSCALE_UP_S:g} s"
        )
    return current, ""


def _fewer(current: int, samples: Sequence[LoadSample], now_s: float) -> tuple[int, str]:
    calm = [sample for sample in samples if sample.at_s > now_s - AUTOSCALE_DOWN_S]
    # A controller that has just begun has not seen a whole minute.
    if not calm or not samples[0].at_s <= now_s - AUTOSCALE_DOWN_S:
        return current, ""
    if any(sample.refused for sample in calm):
        return current, ""
    peak = max(sample.in_flight for sample in calm)
    need = max(1, math.ceil(peak / AUTOSCALE_IN_FLIGHT))
    why = f"never more than {peak} requests at a time for {AUTOSCALE_DOWN_S:g} s"
    return min(need, current), why


def replicas(count: int) -> str:
    return "1 replica" if count == 1 else f"{count} replicas"
