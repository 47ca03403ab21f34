"""A served model, as a handle: ask it, scale it, move it to another version and back.

service = client.serve("digits@prod", replicas=2)
service.wait_ready()
service.predict({"x": [[0.1, 0.2]]})     # {"y": [[...]]}
service.rollout(4)
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from holdfast.client import predicting, service_status, service_waits, serving
from holdfast.client.absence import Progress
from holdfast.client.predicting import Answer
from holdfast.client.service_status import ObservedService, ServiceStatus, status_of
from holdfast.wire.errors import Unavailable
from holdfast.wire.limits import SERVE_ANSWER_S, SERVE_WAIT_S, UNSERVE_WAIT_S

if TYPE_CHECKING:
    from holdfast.client.connection import ClusterConnection
    from holdfast.serve import records
    from holdfast.serve.services import Services
    from holdfast.wire.history import HistoryEntry

# One prediction; a model that takes longer is slow, and `timeout_s` says how slow it may be.
PREDICT_S: Final = 60.0


class Service:
    """A service. `served`: what `Client.serve` did, if that made this handle. May be used by any
    thread; `Missing` names the nearest service, if there is none of this name."""

    def __init__(
        self, connection: ClusterConnection, name: str, served: serving.Served | None = None
    ) -> None:
        self.name = name
        self.served = served
        self._connection = connection
        self._known: ObservedService | None = None

    def __repr__(self) -> str:
        return f"<Service {self.name}>"

    @property
    def key(self) -> str:
        """The API key that `serve(key=True)` made; it is told only here. Empty: none."""
        return self.served.key if self.served is not None else ""

    # --- how it is ------------------------------------------------------------------------------

    def observe(self) -> ObservedService:
        """All that is known of it now."""
        self._connection.found.service(self.name)
        return service_status.observe_service(self._connection.found, self.name)

    def status(self) -> ServiceStatus:
        """How it is now, in short."""
        return status_of(self.observe())

    def history(self) -> list[HistoryEntry]:
        """What was asked and decided, each with its reason; oldest first."""
        self._connection.found.service(self.name)
        return self._connection.found.services().history(self.name)

    def watch(self) -> Iterator[ServiceStatus]:
        """Its status now, and each time that it changes. It has no end of its own."""
        changes = service_waits.ServiceChanges(self._connection.found, self.name)
        while True:
            if (status := changes.poll()) is not None:
                yield status
            time.sleep(changes.every_s)

    def wait_ready(
        self, timeout_s: float = SERVE_WAIT_S, *, progress: Progress | None = None
    ) -> ServiceStatus:
        """Wait until it serves what is wanted and a gateway answers for it; after a change of
        settings alone, until that is followed. `TerminalError`: the version was taken back."""
        found, served = self._connection.found, self.served
        if served is not None and served.settings_only:
            wait = service_waits.until_noted(found, self.name, timeout_s, progress)
            return status_of(wait.here())
        seen = service_waits.until_settled(found, self.name, timeout_s, progress).here()
        address = next(iter(seen.gateways.values())).address
        service_waits.until_answered(address, self.name, SERVE_ANSWER_S).here()
        return status_of(seen)

    def wait_settled(
        self, timeout_s: float = SERVE_WAIT_S, *, progress: Progress | None = None
    ) -> ServiceStatus:
        """Wait until what is wanted is what every gateway sends requests to."""
        found = self._connection.found
        return status_of(service_waits.until_settled(found, self.name, timeout_s, progress).here())

    # --- asking ---------------------------------------------------------------------------------

    def predict(
        self,
        inputs: Any,
        *,
        version: int | None = None,
        user: str | None = None,
        entity: str | None = None,
        key: str | None = None,
        timeout_s: float = PREDICT_S,
    ) -> dict[str, Any]:
        """The outputs by name, as lists. `inputs` by name, or the only one's: lists, numbers, text,
        arrays or tensors. `version`: exactly this one; `user`: who asks, a variant keeps its users;
        `entity`: what it is about, of a service with `route_by`: the same replica answers.

        `RetryError` (`Full`, `Unavailable`, `TimedOut`): the same request may succeed later;
        `TerminalError`: what does not fit, in the service's own words.
        """
        return self.answer(
            inputs, version=version, user=user, entity=entity, key=key, timeout_s=timeout_s
        ).outputs

    def predict_async(self, inputs: Any, **more: Any) -> Future[dict[str, Any]]:
        """`predict` as a future; takes what that takes. Many may be under way."""
        return self._connection.threads.submit(self.predict, inputs, **more)

    def answer(
        self,
        inputs: Any,
        *,
        version: int | None = None,
        user: str | None = None,
        entity: str | None = None,
        key: str | None = None,
        timeout_s: float = PREDICT_S,
    ) -> Answer:
        """As `predict`, with who gave the answer: version, variant, replica."""
        headers = {"content-type": "application/json"}
        known = self._known or self._look_again()
        if user is not None:
            headers[known.service.sticky_header] = user
        if entity is not None and known.service.route_by:
            headers[known.service.route_by] = entity
        if key or self.key:
            headers["x-api-key"] = key or self.key
        which = f"/versions/{version}" if version is not None else ""
        return self._connection.gateways.ask(
            self._addresses,
            self.name,
            f"/predict/{self.name}{which}",
            predicting.body_of(inputs),
            headers,
            timeout_s,
        )

    def _addresses(self, fresh: bool) -> tuple[str, ...]:
        known = self._look_again() if fresh or self._known is None else self._known
        return tuple(one.address for one in known.gateways.values())

    def _look_again(self) -> ObservedService:
        """Where its gateways are is asked once, and again when none of them answers."""
        known = self.observe()
        if not known.gateways:
            fix = f"holdfast serve {known.service.model}"
            raise Unavailable("the cluster has no gateway", fix=fix)
        self._known = known
        return known

    # --- changing -------------------------------------------------------------------------------

    def scale(self, replicas: int | None) -> records.ServiceSpec:
        """Have so many replicas; None: as many as its load asks for, between least and most."""
        return self._here().scale(self.name, replicas)

    def rollout(self, version: int | str | None = None) -> records.ServiceSpec:
        """Serve this version, or what this alias names, step by step; it is taken back by itself if
        it does worse. None: the same target again, also after it has failed."""
        target = None if version is None else str(version)
        self._asks_for_version()
        return self._here().rollout(self.name, target)

    def rollback(self) -> records.ServiceSpec:
        """Serve the version before, at once, until the next `rollout`."""
        self._asks_for_version()
        return self._here().rollback(self.name)

    def split(self, weights: Mapping[int, float]) -> records.ServiceSpec:
        """Serve several versions side by side, by weight; none: the target alone again."""
        self._asks_for_version()
        return self._here().split(self.name, weights)

    def add_key(self, *, operator: bool = False) -> str:
        """A new API key, told once. From now on requests need one."""
        return self._here().add_key(self.name, operator=operator)

    def remove_key(self, key: str) -> records.ServiceSpec:
        """Forget a key, given as it is or by the first letters of its SHA-256."""
        return self._here().remove_key(self.name, key)

    def stop(
        self, timeout_s: float = UNSERVE_WAIT_S, *, progress: Progress | None = None
    ) -> serving.Ended:
        """End it: its replicas answer what they have begun, and leave. With the last service also
        the gateway and the controller end that `serve` had started on this machine."""
        self._here()
        service_waits.until_stopped(self._connection.found, self.name, timeout_s, progress).here()
        return serving.end_processes(self._connection.found, progress)

    def _asks_for_version(self) -> None:
        """From now on `wait_ready` waits for a version, not for settings alone."""
        if self.served is not None:
            self.served = replace(self.served, settings_only=False)

    def _here(self) -> Services:
        """`Missing`, with the nearest name, if it is not served."""
        self._connection.found.service(self.name)
        return self._connection.found.services()
