"""Over the own server of a real ensemble's leader, while the others are paused. It answers a sync
alone; so nothing that is held is held because of that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from holdfast.coordination import Election, connect
from holdfast.system.clock import SystemClock
from tests.contract.planes import EnsemblePlane
from tests.servers import ZooKeeperEnsemble, ZooKeeperServer
from tests.waiting import eventually

pytestmark = pytest.mark.engines


class TurnedClock(SystemClock):
    """The machine's clock, and what it was turned on by."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now_s(self) -> float:
        return super().now_s() + self.ahead_s


@pytest.fixture
def real(ensemble: ZooKeeperEnsemble) -> Iterator[EnsemblePlane]:
    plane = EnsemblePlane(ensemble)
    try:
        yield plane
    finally:
        plane.end()


@contextmanager
def paused(servers: list[ZooKeeperServer]) -> Iterator[None]:
    for server in servers:
        server.pause()
    try:
        yield
    finally:
        for server in servers:
            server.resume()


def test_a_leader_does_not_act_on_the_word_of_a_server_that_cannot_ask_the_others(
    ensemble: ZooKeeperEnsemble, real: EnsemblePlane, closing: ExitStack
) -> None:
    clock = TurnedClock()
    address = real.by_port(ensemble.leader().port, timeout_s=20)
    session = closing.enter_context(connect(address, clock=clock))
    leadership = Election(session, "/lead", "me").campaign()
    assert leadership.acting
    with paused(ensemble.followers()):
        clock.ahead_s = session.timeout_s
        assert not leadership.acting
        # The keeper asks again and again, until the server sees that it is alone.
        eventually(lambda: leadership.acting or not session.connected, "the server gives up")
        assert not leadership.acting
    eventually(lambda: leadership.acting or leadership.lost, "the others are asked again")
