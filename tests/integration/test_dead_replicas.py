"""A replica that is killed is not shown any more as soon as its agent has seen its end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.launch import serving
from holdfast.serve.records import ServiceSpec
from holdfast.serve.services import Services
from tests.integration.clusters import Home
from tests.integration.person import WAIT_S, Person
from tests.integration.test_serve_command import PREDICT, publish, replica_pid
from tests.waiting import eventually

# Sessions that outlast the whole test: whoever is not shown was removed by somebody.
LASTING = "embedded:coordination?timeout_s=1200&tick_ms=60000"


@pytest.fixture
def lasting(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path / "cluster", LASTING)
    try:
        yield made
    finally:
        made.end()


def test_a_killed_replica_is_not_shown_although_its_session_lasts(
    lasting: Home, tmp_path: Path
) -> None:
    lasting.up()
    serving.start_controller(lasting.cluster)
    with lasting.control() as control, lasting.cluster.session() as session:
        person = Person(lasting, control, tmp_path)
        publish(person, "times", PREDICT % 2)
        services = Services(session)
        services.create(ServiceSpec("times", "times", "1", replicas_min=2, replicas_max=2))

        def shown() -> list[int]:
            return sorted(services.replicas("times"))

        first, second = eventually(lambda: shown() if len(shown()) == 2 else None, "two", WAIT_S)
        os.kill(replica_pid(lasting, "serve.times", first), signal.SIGKILL)
        eventually(lambda: first not in shown(), "the killed one is not shown", WAIT_S)
        eventually(lambda: len(shown()) == 2, "another one is there", WAIT_S)
        assert second in shown()
