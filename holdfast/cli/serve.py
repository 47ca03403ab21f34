"""`holdfast serve`: from a published model to an address that answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.cli import listing, output, serve_settings, serving
from holdfast.cli import serve_options as options
from holdfast.cli.opening import ClusterOption, JsonOption, Opened, opened
from holdfast.wire.errors import Usage
from holdfast.wire.limits import SERVE_ANSWER_S, SERVE_WAIT_S

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.cli.serve_output import Told
    from holdfast.serve.records import Service
    from holdfast.serve.services import Services

EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast serve digits[/]                      what the alias prod names, else the newest

  [cyan]holdfast serve digits@4 --replicas 3[/]

  [cyan]holdfast serve digits@prod --min 2 --max 8[/]  as many as the load asks for

  [cyan]holdfast serve digits --canary 1,10,50 --hold 5m --key[/]

  [cyan]holdfast serve digits --body-max 64MiB --timeout 30s[/]   of a service that is there

  [cyan]holdfast serve digits --guard-range y=0:1 --guard-shift 0.5[/]   a new version must keep it

  [cyan]holdfast serve digits --service digits-eu --gateway 127.0.0.1:8090[/]

  [cyan]holdfast serve digits --gateways 2[/]         one that dies leaves the other at its address


Run it again to change what you give; the rest stays. New versions come with `holdfast rollout`,
or when the alias moves.
"""


def serve(
    reference: options.Reference,
    service: options.Name = None,
    replicas: options.Replicas = None,
    least: options.Least = None,
    most: options.Most = None,
    cpu: options.Cpu = None,
    memory: options.Memory = None,
    gpu: options.Gpu = None,
    canary: options.Canary = None,
    hold: options.Hold = None,
    rate: options.Rate = None,
    timeout: options.Timeout = None,
    batch: options.Batch = None,
    queue_max: options.QueueMax = None,
    wait_max: options.WaitMax = None,
    body_max: options.BodyMax = None,
    bodies_max: options.BodiesMax = None,
    ready: options.Ready = None,
    requests_min: options.RequestsMin = None,
    errors_max: options.ErrorsMax = None,
    slower_max: options.SlowerMax = None,
    slower_slack: options.SlowerSlack = None,
    guard_nonfinite: options.GuardNonfinite = None,
    guard_range: options.GuardRange = None,
    guard_outside: options.GuardOutside = None,
    guard_shift: options.GuardShift = None,
    guard_disagree: options.GuardDisagree = None,
    shadow: options.Shadow = None,
    breaker_failures: options.BreakerFailures = None,
    breaker_open: options.BreakerOpen = None,
    breaker_open_max: options.BreakerOpenMax = None,
    connect_timeout: options.ConnectTimeout = None,
    in_flight_max: options.InFlightMax = None,
    retries: options.Retries = None,
    cache: options.Cache = None,
    redis: options.Redis = None,
    sticky: options.Sticky = None,
    log_predictions: options.LogPredictions = None,
    key: options.Key = False,
    priority: options.Priority = None,
    queue: options.Queue = None,
    gateway: options.Gateway = None,
    gateways: options.Gateways = None,
    region: options.Region = "",
    no_wait: options.NoWait = False,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve a model, and print an address that answers.

    Starts replicas by the cluster's agents, and on this machine a conductor and a gateway if the
    cluster has none. A model that is served already is changed in place: no request is lost. What
    is not given stays as it is.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    front = options.Front(gateway, region, gateways)
    asked = Asked(reference, service, serve_settings.wishes(given), key, front)
    _show(_served(asked, cluster, wait=not no_wait), waited=not no_wait, as_json=as_json)


def _show(told: Told, *, waited: bool, as_json: bool) -> None:
    if as_json:
        output.show_json(told.document())
    else:
        told.show(waited=waited)


@dataclass(frozen=True)
class Asked:
    """What the words of the command mean. `wishes`: fields of the service, those that change."""

    reference: str
    service: str | None
    wishes: dict[str, Any]
    key: bool
    front: options.Front


def _served(asked: Asked, cluster: Path | None, *, wait: bool) -> Told:
    from holdfast.cli import serve_output

    with opened(cluster) as found:
        name, settings_only = _wanted(found, asked.reference, asked.service, asked.wishes)
        services = serving.services_of(found)
        # Asked again, it needs no second one.
        secret = services.add_key(name) if asked.key and not services.service(name).keys else ""
        with serving.progress(name) as show:
            addresses = serve_output.processes(found, asked.front, show)
            if wait and settings_only:
                # A version that has failed meanwhile is another matter: it is told below.
                serving.until_noted(found, name, SERVE_WAIT_S, show)
            elif wait:
                serving.until_settled(found, name, SERVE_WAIT_S, show)
                serve_output.until_answered(addresses, name, SERVE_ANSWER_S)
        return serve_output.told(found, name, addresses, secret)


def _wanted(
    found: Opened, reference: str, service: str | None, wishes: dict[str, Any]
) -> tuple[str, bool]:
    """Say what is wanted: a new service, or changes of one. Its name; and whether only settings
    change, not which version is served."""
    from holdfast.models.names import split_reference
    from holdfast.serve.records import Service

    services = serving.services_of(found)
    model, which = split_reference(reference)
    name = service or model
    before = services.services().get(name)
    if before is not None and which is None and wishes and model in (name, before.model):
        # Settings only: which version is served is not asked for.
        services.ensure_job(name)
        _update(services, before, wishes)
        return name, True
    target = _target(found, reference, model, which)
    if before is None:
        services.create(serve_settings.changed(Service(name, model, target), wishes))
        return name, False
    _check_model(before, model)
    services.ensure_job(name)
    _update(services, before, wishes)
    if target != before.target or before.pinned is not None or before.split:
        services.rollout(name, target)
    return name, False


def _update(services: Services, before: Service, wishes: dict[str, Any]) -> None:
    after = serve_settings.changed(before, wishes)
    if after != before:
        words = _words(before, after)
        services.update(before.name, lambda now: serve_settings.changed(now, wishes), words)


def _target(found: Opened, reference: str, model: str, which: str | int | None) -> str:
    """What to serve: as it was said, else the alias of production, else the newest version."""
    from holdfast.models.catalogue import Catalogue
    from holdfast.models.names import PROD

    catalogue = Catalogue(found.session)
    number = catalogue.resolve(reference).version.number
    if which is not None:
        return str(which)
    if catalogue.alias(model, PROD) is not None:
        return PROD
    listing.note(f"{model} has no alias {PROD}: version {number}, the newest, is served")
    return str(number)


def _words(before: Service, after: Service) -> str:
    """Which of its parts change, for the history."""
    names = [
        name.replace("_", " ")
        for name in before.__slots__
        if getattr(before, name) != getattr(after, name)
    ]
    return f"change {', '.join(names)}"


def _check_model(before: Service, model: str) -> None:
    if before.model != model:
        raise Usage(
            f"the service {before.name} serves {before.model}, not {model}",
            fix=f"give it another name: --service NAME, or: holdfast unserve {before.name}",
        )
