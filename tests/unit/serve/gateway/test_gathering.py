"""What Envoy is told when, and what it is asked: its first thread does both, beside its checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.serve.gateway import gateway
from holdfast.serve.gateway.admin import Admin, EnvoyHost
from holdfast.serve.gateway.applying import _STATISTICS, Applying, Files
from holdfast.serve.gateway.clusters import Json
from holdfast.serve.gateway.envoy import Envoy
from holdfast.serve.gateway.gateway import GatewayLoop
from holdfast.serve.gateway.resources import VERSION, resources
from holdfast.serve.gateway.state import PlaneService, pressing
from holdfast.serve.gateway.watching import PlaneWatcher
from holdfast.serve.records import Replica, RolloutPlan, ServiceSpec
from tests.unit.serve.gateway.making import FRONT, known, plan, replica, seen, state

ONE = plan((1, 10_000))
NEXT = plan((2, 10_000), number=2, hold=(2, 1))


def test_what_a_replica_says_of_versions_that_no_variant_names_does_not_press() -> None:
    before = state(known(ONE, seen(1), seen(2)))
    for quiet in (
        known(ONE, seen(1, loading=(2,)), seen(2)),
        known(ONE, seen(1, (1, 2)), seen(2)),
        known(ONE, seen(1, plan=7), seen(2)),
    ):
        assert pressing(state(quiet)) == pressing(before)
    for urgent in (
        known(ONE, seen(1), seen(2, ())),
        known(ONE, seen(1), seen(2, draining=True)),
        known(ONE, seen(1), seen(2, lost_s=1.0)),
        known(ONE, seen(1)),
        known(NEXT, seen(1), seen(2)),
        known(replace(ONE, number=2), seen(1), seen(2)),
    ):
        assert pressing(state(urgent)) != pressing(before)


class Plane:
    """What a gateway is told of one service with two replicas."""

    present = True

    def __init__(self) -> None:
        self.found: Mapping[str, PlaneService] | None = None
        self.shown: list[Any] = []

    def show(self, facts: Any) -> None:
        self.shown.append(facts)

    def hold(self, given: RolloutPlan, *replicas: Replica) -> None:
        service = ServiceSpec("digits", "digits", "prod")
        there = {str(one.worker): one for one in replicas}
        self.found = {"digits": PlaneService(service, given, there)}


class Takes:
    """In place of Envoy and its files."""

    alive = True

    def __init__(self) -> None:
        self.told = 0

    def apply(self, files: Mapping[str, Json]) -> None:
        self.told += 1

    def compare(self) -> bool:
        return True

    @property
    def admin(self) -> Takes:
        return self

    def hosts(self) -> list[EnvoyHost]:
        return []


def test_two_replicas_and_the_plan_after_them_are_one_change_for_envoy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    envoy, plane = Takes(), Plane()
    ours = GatewayLoop("front", FRONT, tmp_path, cast("Envoy", envoy), cast("Applying", envoy))
    monkeypatch.setattr(gateway, "GATEWAY_GATHER_S", 3_600.0)

    def told(given: RolloutPlan, *replicas: Replica) -> int:
        before = envoy.told
        plane.hold(given, *replicas)
        ours._turn(cast("PlaneWatcher", plane))
        return envoy.told - before

    assert told(ONE, replica(1), replica(2)) == 1
    assert told(ONE, replica(1, loading=(2,)), replica(2)) == 0
    assert told(ONE, replica(1, (1, 2)), replica(2)) == 0
    assert told(ONE, replica(1, (1, 2)), replica(2, (1, 2))) == 0
    assert 0.0 < ours._patience_s() <= 3_600.0
    assert told(NEXT, replica(1, (1, 2)), replica(2, (1, 2))) == 1
    assert plane.shown[-1].applied == {"digits": 2}
    assert told(NEXT, replica(1, (1, 2)), replica(2, (2,))) == 0
    monkeypatch.setattr(ours, "_gather_until_s", 1e-9)
    assert told(NEXT, replica(1, (1, 2)), replica(2, (2,))) == 1, "it is not forgotten"


class CountingAdmin(Admin):
    """An Envoy that has taken whatever was written, and counts what it is asked."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.asked: list[str] = []

    def taken(self) -> dict[str, str]:
        self.asked.append("taken")
        written = self.files.written
        return {stat: written[name][VERSION] for name, stat in _STATISTICS.items()}

    def _clusters(self, state: str) -> frozenset[str]:
        self.asked.append(state)
        return frozenset()


def test_envoy_is_not_asked_for_what_it_is_known_to_have(tmp_path: Path) -> None:
    files = Files(tmp_path)
    admin = CountingAdmin(files)
    applying = Applying(files, admin)
    first = resources(state(known(ONE, seen(1, (1, 2)))))
    applying.prepare(first)
    applying.apply(first)
    assert admin.asked == ["taken"], "it was started just now"
    applying.apply(first)
    assert admin.asked == ["taken"]
    admin.asked.clear()
    applying.apply(resources(state(known(NEXT, seen(1, (1, 2))))))
    assert admin.asked == ["warming", "taken"], "its clusters are those of before"
    admin.asked.clear()
    third = plan((3, 10_000), number=3)
    applying.apply(resources(state(known(third, seen(1, (1, 2, 3))))))
    assert admin.asked == ["taken", "warming", "taken"], "clusters, who is in them, routes"
    admin.asked.clear()
    applying.adopt()
    applying.apply(resources(state(known(third, seen(1, (1, 2, 3))))))
    assert admin.asked == ["taken"], "it may be another one"
