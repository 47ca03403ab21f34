"""Circuit breakers of a real gateway: a replica that breaks requests is left alone for as long as
its service says, and that is told."""

from __future__ import annotations

from holdfast.serve.records import Breaker, BreakerPolicy, BreakerState, Limits
from tests.integration.gateway_world import World, load, pass_requests
from tests.waiting import eventually


def test_a_breaker_opens_when_requests_break_and_closes_when_they_are_answered(
    world: World,
) -> None:
    breaker = BreakerPolicy(failures=3, open_s=1.0, open_s_max=1.0)
    world.service(limits=Limits(timeout_s=6.0), breaker=breaker)
    bad, _good = world.replica(1), world.replica(2)
    plan = world.plan()
    gateway = world.gateway()
    world.applied(plan)
    gateway.served()

    def told() -> BreakerState | None:
        shown = world.shown()
        assert shown is not None
        return shown.breakers.get("digits", {}).get(1)

    def is_(state: Breaker) -> bool:
        found = told()
        return found is not None and found.state is state

    assert told() is None
    with load(gateway) as seen:
        bad.control(breaks=1)  # its health goes on looking well
        eventually(lambda: is_(Breaker.OPEN), "the breaker is open")
        since_s = told()
        assert since_s is not None and since_s.since_s > 0
        pass_requests(seen, 200)
        bad.control(breaks=0)
        eventually(lambda: is_(Breaker.CLOSED), "a request was answered, and it is closed")
    assert not seen.failed(), "each broken request was answered by the other one"
    shown = world.shown()
    assert shown is not None and set(shown.breakers["digits"]) == {1}
    eventually(lambda: gateway.ask().replica == "1", "it is asked again")
