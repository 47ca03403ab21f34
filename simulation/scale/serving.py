"""How busy each part of serving is at a rate of requests. Pure.

One service with as many replicas as it needs, behind as many gateways as they need; or many
services with a few replicas each. A billion predictions a day are 11,574 a second in the mean; the
peak is taken as three times that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from holdfast.wire.limits import (
    ENVOY_TAKE_S,
    HEALTH_CHECK_S,
    PREDICTIONS_FILE_BYTES_MAX,
    PREDICTIONS_FILES_KEPT,
    SERVICE_REPLICAS_MAX,
    STATS_POLL_S,
)
from simulation.scale.costs import Costs
from simulation.scale.loads import PartLoad, ScalingPart

DAY_S = 86_400
BILLION_A_DAY = 1e9 / DAY_S
PEAK = 3.0
PROTOCOLS = 2  # a cluster of Envoy for HTTP and one for gRPC, each with its own checks


@dataclass(frozen=True, slots=True)
class RequestLoad:
    """Requests a second to one service. `model_s`: of a replica's core, beside what the server
    itself costs. `busy`: the part of a core that is to be used at this rate."""

    rate: float
    model_s: float = 0.0
    busy: float = 0.6
    gateway_cores: int = 4
    versions: int = 2  # that replicas hold, and gateways check: during a rollout, and after it


def replicas(traffic: RequestLoad, costs: Costs) -> int:
    """Replicas of one core each."""
    each_s = costs.replica_request_s.value + traffic.model_s
    return max(1, math.ceil(traffic.rate * each_s / traffic.busy))


def gateways(traffic: RequestLoad, costs: Costs) -> int:
    """Machines with an Envoy on `gateway_cores` each."""
    cores = traffic.rate * costs.envoy_request_s.value / traffic.busy
    return max(1, math.ceil(cores / traffic.gateway_cores))


def checks_of_gateway(traffic: RequestLoad, costs: Costs) -> float:
    """Cores that a gateway spends on health checks: it checks every replica for itself."""
    rate = replicas(traffic, costs) * PROTOCOLS * traffic.versions / HEALTH_CHECK_S
    return rate * costs.envoy_check_s.value


def checks_of_replica(traffic: RequestLoad, costs: Costs) -> float:
    """The part of its core that a replica spends on answering them."""
    rate = gateways(traffic, costs) * PROTOCOLS * traffic.versions / HEALTH_CHECK_S
    return rate * costs.replica_check_s.value


def polling(traffic: RequestLoad, costs: Costs) -> float:
    """Cores that the controller spends on asking for counts during a rollout."""
    return replicas(traffic, costs) / STATS_POLL_S * costs.ask_s.value


def kept_s(traffic: RequestLoad, costs: Costs) -> float:
    """For how long the prediction logs of all replicas reach back."""
    kept = (1 + PREDICTIONS_FILES_KEPT) * PREDICTIONS_FILE_BYTES_MAX
    return replicas(traffic, costs) * kept / (traffic.rate * costs.prediction_bytes.value)


def turn_s(services: int, replicas_each: int, costs: Costs) -> float:
    """A gateway's own time for one change of one service, with so many that did not change."""
    there = services * replicas_each
    return services * costs.files_service_s.value + there * costs.files_replica_s.value


def parts(costs: Costs, traffic: RequestLoad) -> list[ScalingPart]:
    """By requests a second to one service."""

    def at(rate: int) -> RequestLoad:
        return replace(traffic, rate=float(rate))

    return [
        ScalingPart(
            "service: its replicas",
            f"SERVICE_REPLICAS_MAX = {SERVICE_REPLICAS_MAX}",
            lambda rate: PartLoad(replicas(at(rate), costs), SERVICE_REPLICAS_MAX),
        ),
        ScalingPart(
            "gateway: health checks",
            "a tenth of its cores",
            lambda rate: PartLoad(checks_of_gateway(at(rate), costs), 0.1 * traffic.gateway_cores),
        ),
        ScalingPart(
            "replica: health checks",
            "a tenth of its core",
            lambda rate: PartLoad(checks_of_replica(at(rate), costs), 0.1),
        ),
        ScalingPart(
            "controller: counts during a rollout",
            "one core",
            lambda rate: PartLoad(polling(at(rate), costs), 1.0),
        ),
    ]


def service_parts(costs: Costs, replicas_each: int = 2) -> list[ScalingPart]:
    """By the number of services behind a gateway."""
    return [
        ScalingPart(
            "gateway: a change, its own time",
            "one second",
            lambda services: PartLoad(turn_s(services, replicas_each, costs), 1.0),
        ),
        ScalingPart(
            "gateway: a change, until Envoy has it",
            f"it is written again after {ENVOY_TAKE_S:g} s",
            lambda services: PartLoad(services * costs.take_service_s.value, ENVOY_TAKE_S),
        ),
    ]
