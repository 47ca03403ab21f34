"""The settings of a service as `holdfast services NAME` shows them, and its breakers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.client import texts

if TYPE_CHECKING:
    from holdfast.serve.records import (
        BreakerPolicy,
        Gateway,
        Guards,
        Limits,
        RolloutPolicy,
        Service,
    )


def rows(service: Service) -> list[tuple[str, str]]:
    """What `holdfast serve` can change, in words."""
    limits = service.limits
    return [
        ("rollouts", _rollouts(service.policy)),
        ("taken back", _thresholds(service.policy)),
        ("guards", _guards(service.guards)),
        ("limits", _limits(limits)),
        ("rate", f"{limits.rate_per_s:g} a second" if limits.rate_per_s else ""),
        ("breakers", _breakers(service.breaker)),
    ]


def breaker_of(gateways: Mapping[str, Gateway], service: str, replica: int) -> str:
    """Whether gateways send to this replica: the words of those that do not, else closed."""
    told = [
        (name, one.breakers[service][replica])
        for name, one in sorted(gateways.items())
        if replica in one.breakers.get(service, {})
    ]
    if not told:
        return "closed" if gateways else "-"
    worst = {"open": 0, "half-open": 1, "closed": 2}
    name, state = min(told, key=lambda each: worst[each[1].state.value])
    who = f" at {name}" if len(gateways) > 1 else ""
    return f"{state.state.value}{who} since {texts.clock(state.since_s)}"


def _rollouts(policy: RolloutPolicy) -> str:
    steps = ", ".join(f"{step / 100:g} %" for step in policy.steps) or "all at once"
    return f"{steps}; each for {policy.hold_s:g} s; loaded within {policy.ready_s:g} s"


def _thresholds(policy: RolloutPolicy) -> str:
    ratio, slack_ms = policy.latency_ratio_max, policy.latency_slack_ms
    return (
        f"{_percent(policy.error_rate_max)} more errors; a p99 {ratio:g} times as long and "
        f"{slack_ms:g} ms more; not before {policy.requests_min} requests"
    )


def _guards(guards: Guards) -> str:
    told = []
    if guards.nonfinite_max is not None:
        told.append(f"NaN or infinity {_above(guards.nonfinite_max)}")
    told += [
        f"{output} outside of {low:g} to {high:g} {_above(guards.outside_max)}"
        for output, (low, high) in sorted(guards.ranges.items())
    ]
    if guards.shift_max is not None:
        told.append(f"a shift above {guards.shift_max:g} standard deviations")
    if guards.disagree_max is not None:
        told.append(f"another class in more than {_percent(guards.disagree_max)}")
    if guards.compares:
        told.append(f"compared in {_percent(guards.shadow_share)} of a replica's time")
    return "; ".join(told) or "off"


def _limits(limits: Limits) -> str:
    from holdfast.control.decide import units

    return (
        f"an answer within {limits.timeout_s:g} s; {limits.queue_max} requests wait in a replica,"
        f" for {limits.patience_s:g} s; a body of {units.size_of(limits.body_bytes_max)}"
    )


def _breakers(breaker: BreakerPolicy) -> str:
    return (
        f"open after {breaker.failures} broken requests, for {breaker.open_s:g} to"
        f" {breaker.open_s_max:g} s; up to {breaker.retry_percent:g} % of requests are tried again"
    )


def _above(share: float) -> str:
    """Of what is compared with the version that serves."""
    return f"in {_percent(share)} more of the answers" if share else "in more answers than before"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
