"""A gateway that never knew anything does not answer before the plane has told it of services."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast.serve.gateway.gateway import GatewayLoop
from holdfast.serve.gateway.state import Front, PlaneService
from tests.unit.serve.gateway.making import known, plan, seen


class Envoy:
    """Stands where a process would be: this is about when it is started, and with what."""

    def __init__(self) -> None:
        self.alive, self.started_with = False, list[int]()
        self.routes = 0

    def adopt(self) -> bool:
        return False

    def check_free(self) -> None: ...

    def start(self) -> None:
        self.alive = True
        self.started_with.append(self.routes)


class Applying:
    def __init__(self, envoy: Envoy) -> None:
        self._envoy = envoy

    def prepare(self, resources: dict[str, Any]) -> None:
        self._envoy.routes = str(resources).count("/predict/digits")


class Watching:
    present, found = False, None


def test_it_is_started_when_the_services_are_known_and_with_them(tmp_path: Path) -> None:
    envoy = Envoy()
    front = Front("127.0.0.1", 1)
    gateway = GatewayLoop("gateway-1", front, tmp_path, envoy, Applying(envoy))  # type: ignore[arg-type]
    gateway.begin()
    watching: Any = Watching()
    gateway._turn(watching)
    assert not envoy.alive, "requests would be told that there is no such service"
    one = known(plan((1, 10_000)), seen(1))
    watching.found = {one.name: PlaneService(one.service, one.plan, {})}
    with suppress(AttributeError):  # what follows the start is asked of a real Envoy
        gateway._turn(watching)
    assert envoy.started_with[0] > 0
