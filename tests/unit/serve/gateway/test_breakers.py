"""The states of a gateway's breakers, from what Envoy says of its hosts."""

from __future__ import annotations

from holdfast.serve.gateway.admin import BREAKERS_TOLD_MAX, Breakers, EnvoyHost
from holdfast.serve.records import Breaker, BreakerState
from tests.unit.serve.gateway.making import known, plan, seen

SERVICES = (known(plan((1, 10_000)), seen(1), seen(2)),)


def host(worker: int, ejected: bool = False, answered: int = 0, grpc: bool = False) -> EnvoyHost:
    port = (9500 if grpc else 9000) + worker
    return EnvoyHost("digits@1+grpc" if grpc else "digits@1", ("10.0.0.1", port), ejected, answered)


def test_a_breaker_opens_is_half_open_until_a_request_is_answered_and_closes() -> None:
    breakers = Breakers()

    def see(now_s: float, ejected: bool, answered: int) -> BreakerState | None:
        found = breakers.see([host(1, ejected, answered), host(2)], SERVICES, now_s)
        assert 2 not in found.get("digits", {}), "it was never open"
        return found.get("digits", {}).get(1)

    assert see(1.0, False, 5) is None
    assert see(2.0, True, 5) == BreakerState(Breaker.OPEN, 2.0)
    assert see(3.0, True, 5) == BreakerState(Breaker.OPEN, 2.0)
    assert see(4.0, False, 5) == BreakerState(Breaker.HALF_OPEN, 4.0)
    assert see(5.0, False, 5) == BreakerState(Breaker.HALF_OPEN, 4.0)
    assert see(6.0, True, 5) == BreakerState(Breaker.OPEN, 6.0)
    assert see(7.0, False, 5) == BreakerState(Breaker.HALF_OPEN, 7.0)
    assert see(8.0, False, 6) == BreakerState(Breaker.CLOSED, 8.0)
    assert see(9.0, False, 9) == BreakerState(Breaker.CLOSED, 8.0)


def test_a_replica_has_one_breaker_for_both_protocols_and_none_when_it_is_gone() -> None:
    breakers = Breakers()
    found = breakers.see([host(1), host(1, ejected=True, grpc=True)], SERVICES, 1.0)
    assert found == {"digits": {1: BreakerState(Breaker.OPEN, 1.0)}}
    assert breakers.see([host(2)], SERVICES, 2.0) == {}
    stranger = EnvoyHost("digits@1", ("10.9.9.9", 1), True, 0)
    assert breakers.see([stranger], SERVICES, 3.0) == {}


def test_of_a_service_with_very_many_the_newest_are_told() -> None:
    many = [seen(worker) for worker in range(BREAKERS_TOLD_MAX + 10)]
    services = (known(plan((1, 10_000)), *many),)
    breakers = Breakers()
    breakers.see([host(0, ejected=True)], services, 1.0)
    hosts = [host(worker, ejected=True) for worker in range(len(many))]
    told = breakers.see(hosts, services, 2.0)["digits"]
    assert len(told) == BREAKERS_TOLD_MAX and 0 not in told
