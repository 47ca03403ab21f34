"""Serving a model: what is wanted is written, and whoever is missing for it is started here."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from holdfast.client import serve_settings
from holdfast.client.absence import Progress
from holdfast.wire.errors import Usage

if TYPE_CHECKING:
    from holdfast.client.opening import Note, Opened
    from holdfast.serve.records import ServiceSpec
    from holdfast.serve.services import Services


class ServeOptions(TypedDict, total=False):
    """What `Client.serve` takes beside its own words: the options of `holdfast serve`, which that
    command's `--help` explains. A share is `"5%"`, or a number of percents."""

    least: int  # --min
    most: int  # --max
    cpu: float
    memory: str | int
    gpu: int
    canary: str | Sequence[float]
    hold: str | float
    rate: float
    timeout: str | float
    batch: int
    queue_max: int
    wait_max: str | float
    body_max: str | int
    bodies_max: str | int
    ready: str | float
    requests_min: int
    errors_max: str | float
    slower_max: float
    slower_slack: str | float
    guard_nonfinite: str | float
    guard_range: Sequence[str]
    guard_outside: str | float
    guard_shift: str | float
    guard_disagree: str | float
    shadow: str | float
    breaker_failures: int
    breaker_open: str | float
    breaker_open_max: str | float
    connect_timeout: str | float
    in_flight_max: int
    retries: str | float
    cache: int
    redis: str
    sticky: str
    log_predictions: bool
    predictions_topic: bool
    predictions_sample: str | float
    predictions_redact: Sequence[str]
    predictions_key: Sequence[str]
    predictions_blob: str | int
    predictions_keep: str | float
    route_by: str
    priority: int
    queue: str


@dataclass(frozen=True)
class ServeRequest:
    """What is to be served. `changes`: fields of the service, those that change."""

    reference: str
    service: str | None
    changes: Mapping[str, Any]
    key: bool = False
    gateway: str | None = None
    region: str = ""
    gateways: int | None = None  # that share the address

    @property
    def says_more(self) -> bool:
        """Whether anything is said beside what is served."""
        front = (self.gateway, self.gateways, self.region or None)
        return bool(self.changes) or self.key or any(each is not None for each in front)

    @property
    def name(self) -> str:
        """What the service is called."""
        from holdfast.models.records import split_reference

        return self.service or split_reference(self.reference)[0]


@dataclass(frozen=True)
class Served:
    """What was done. `addresses`: of the gateways, by name; `key`: a new API key, told once;
    `settings_only`: which version is served was not asked for."""

    name: str
    addresses: Mapping[str, str]
    key: str
    settings_only: bool


def changes_of(replicas: int | None, options: ServeOptions) -> dict[str, Any]:
    """Options by their names in Python as fields of a service. `Usage` names the nearest one."""
    known = ServeOptions.__annotations__
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise Usage(
                f"serve has no option {name}",
                fix=f"did you mean {near[0]}?" if near else "holdfast serve --help lists them",
            )
    given = {"replicas": replicas, **options}
    return serve_settings.changes({name: each for name, each in given.items() if each is not None})


def serve(
    found: Opened, request: ServeRequest, note: Note, progress: Progress | None = None
) -> Served:
    """Write what is wanted, and see to it that there are a controller and a gateway. What comes of
    it is waited for by `service_waits`."""
    name, settings_only = _wanted(found, request, note)
    services = found.services()
    # Asked again, it needs no second one.
    secret = services.add_key(name) if request.key and not services.service(name).keys else ""
    addresses = _processes(found, request, progress)
    return Served(name, addresses, secret, settings_only)


def _processes(found: Opened, request: ServeRequest, progress: Progress | None) -> dict[str, str]:
    """A controller and a gateway, started if the cluster has none; the gateways' addresses."""
    from holdfast.launch import serving as launching

    return launching.ensure(
        found.cluster,
        found.session,
        listen=request.gateway,
        region=request.region,
        together=request.gateways,
        look=lambda what: None if progress is None else progress(f"waiting for {what}"),
    )


@dataclass(frozen=True)
class Ended:
    """What had been started here for serving and has ended; and the gateways that go on."""

    names: tuple[str, ...] = ()
    left: Mapping[str, str] | None = None


def end_processes(found: Opened, progress: Progress | None = None) -> Ended:
    """End what `serve` had started here, if nothing is served any more."""
    from holdfast.launch import serving as launching

    services = found.services()
    stopped = launching.end(
        found.cluster,
        found.session,
        lambda: bool(services.services()),
        lambda what: None if progress is None else progress(f"waiting for {what}"),
    )
    if not stopped:
        return Ended()
    left = {name: one.address for name, one in sorted(services.gateways().items())}
    return Ended(tuple(one.name for one in stopped), left)


def _wanted(found: Opened, request: ServeRequest, note: Note) -> tuple[str, bool]:
    """Say what is wanted: a new service, or changes of one. Its name; and whether only settings
    change, not which version is served."""
    from holdfast.models.records import split_reference
    from holdfast.serve.records import ServiceSpec

    services = found.services()
    model, which = split_reference(request.reference)
    name, changes = request.name, request.changes
    before = services.services().get(name)
    if before is not None and which is None and request.says_more and model in (name, before.model):
        # Settings only: which version is served is not asked for.
        services.ensure_job(name)
        _update(services, before, changes)
        return name, True
    target = _target(found, request.reference, model, which, note)
    if before is None:
        services.create(serve_settings.changed(ServiceSpec(name, model, target), changes))
        return name, False
    _check_model(before, model)
    services.ensure_job(name)
    _update(services, before, changes)
    if target != before.target or before.pinned is not None or before.split:
        services.rollout(name, target)
    return name, False


def _update(services: Services, before: ServiceSpec, changes: Mapping[str, Any]) -> None:
    after = serve_settings.changed(before, changes)
    if after != before:
        words = _words(before, after)
        services.update(before.name, lambda now: serve_settings.changed(now, changes), words)


def _target(found: Opened, reference: str, model: str, which: str | int | None, note: Note) -> str:
    """What to serve: as it was said, else the alias of production, else the newest version."""
    from holdfast.models.catalogue import Catalogue
    from holdfast.models.records import PROD

    catalogue = Catalogue(found.session)
    number = catalogue.resolve(reference).version.number
    if which is not None:
        return str(which)
    if catalogue.alias(model, PROD) is not None:
        return PROD
    note(f"{model} has no alias {PROD}: version {number}, the newest, is served")
    return str(number)


def _words(before: ServiceSpec, after: ServiceSpec) -> str:
    """Which of its parts change, for the history."""
    names = [
        name.replace("_", " ")
        for name in before.__slots__
        if getattr(before, name) != getattr(after, name)
    ]
    return f"change {', '.join(names)}"


def _check_model(before: ServiceSpec, model: str) -> None:
    if before.model != model:
        raise Usage(
            f"the service {before.name} serves {before.model}, not {model}",
            fix=f"give it another name: --service NAME, or: holdfast unserve {before.name}",
        )
