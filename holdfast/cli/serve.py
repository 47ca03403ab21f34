"""`holdfast serve`: from a published model to an address that answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from holdfast.cli import listing, output, serving
from holdfast.cli import serve_options as options
from holdfast.cli.opening import ClusterOption, JsonOption, Opened, opened
from holdfast.wire.errors import Missing, Usage
from holdfast.wire.limits import SERVE_ANSWER_S, SERVE_WAIT_S

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.cli.serve_output import Told
    from holdfast.serve.records import Service
    from holdfast.wire.room import Resources

EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast serve digits[/]                      what the alias prod names, else the newest

  [cyan]holdfast serve digits@4 --replicas 3[/]

  [cyan]holdfast serve digits@prod --min 2 --max 8[/]  as many as the load asks for

  [cyan]holdfast serve digits --canary 1,10,50 --hold 5m --key[/]

  [cyan]holdfast serve digits --service digits-eu --gateway 127.0.0.1:8090[/]


Run it again to change what you give; the rest stays. New versions come with `holdfast rollout`,
or when the alias moves.
"""

_PERCENT = 100


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
    cache: options.Cache = None,
    redis: options.Redis = None,
    sticky: options.Sticky = None,
    log_predictions: options.LogPredictions = None,
    key: options.Key = False,
    priority: options.Priority = None,
    queue: options.Queue = None,
    gateway: options.Gateway = None,
    region: options.Region = "",
    no_wait: options.NoWait = False,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve a model, and print an address that answers.

    Starts replicas by the cluster's agents, and on this machine a conductor and a gateway if the
    cluster has none. A model that is served already is changed in place: no request is lost.
    """
    if replicas is not None and (least is not None or most is not None):
        raise Usage("--replicas is a number, --min and --max a range", fix="give one or the other")
    wishes = {
        "resources": _resources(cpu, memory, gpu),
        "priority": priority,
        "queue": queue,
        "cache_entries": cache,
        "redis": redis,
        "sticky_header": sticky.lower() if sticky else None,
        "log_predictions": log_predictions,
        "policy": {"steps": _steps(canary), "hold_s": _seconds("--hold", hold)},
        "limits": {
            "rate_per_s": rate,
            "timeout_s": _seconds("--timeout", timeout),
            "batch_max": batch,
            "queue_max": queue_max,
        },
        **_counts(replicas, least, most),
    }
    asked = Asked(reference, service, wishes, key=key, gateway=gateway, region=region)
    told = _served(asked, cluster, wait=not no_wait)
    if as_json:
        output.show_json(told.document())
    else:
        told.show(waited=not no_wait)


@dataclass(frozen=True)
class Asked:
    """What the words of the command mean. `wishes`: fields of the service; None: as they are."""

    reference: str
    service: str | None
    wishes: dict[str, Any]
    key: bool
    gateway: str | None
    region: str


def _served(asked: Asked, cluster: Path | None, *, wait: bool) -> Told:
    from holdfast.cli import serve_output

    with opened(cluster) as found:
        name = _wanted(found, asked.reference, asked.service, asked.wishes)
        services = serving.services_of(found)
        # Asked again, it needs no second one.
        secret = services.add_key(name) if asked.key and not services.service(name).keys else ""
        with serving.progress(name) as show:
            addresses = serve_output.processes(found, asked.gateway, asked.region, show)
            if wait:
                serving.until_settled(found, name, SERVE_WAIT_S, show)
                serve_output.until_answered(addresses, name, SERVE_ANSWER_S)
        return serve_output.told(found, name, addresses, secret)


def _wanted(found: Opened, reference: str, service: str | None, wishes: dict[str, Any]) -> str:
    """Say what is wanted: a new service, or changes of one. Its name."""
    from holdfast.models.catalogue import Catalogue
    from holdfast.models.names import PROD, split_reference
    from holdfast.serve.records import Service

    services = serving.services_of(found)
    model, which = split_reference(reference)
    catalogue = Catalogue(found.session)
    number = catalogue.resolve(reference).version.number
    name = service or model
    if which is not None:
        target = str(which)
    elif catalogue.alias(model, PROD) is not None:
        target = PROD
    else:
        target = str(number)
        listing.note(f"{model} has no alias {PROD}: version {target}, the newest, is served")
    try:
        before = services.service(name)
    except Missing:
        services.create(_changed(Service(name, model, target), wishes))
        return name
    _check_model(before, model)
    services.ensure_job(name)
    after = _changed(before, wishes)
    if after != before:
        services.update(name, lambda now: _changed(now, wishes), _words(before, after))
    if target != before.target or before.pinned is not None or before.split:
        services.rollout(name, target)
    return name


def _changed(service: Service, wishes: dict[str, Any]) -> Service:
    """The service with what was given; None: as it is."""
    given = {key: value for key, value in wishes.items() if value is not None}
    for part in ("policy", "limits"):
        inner = {key: value for key, value in given.pop(part, {}).items() if value is not None}
        if inner:
            given[part] = replace(getattr(service, part), **inner)
    return replace(service, **given)


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


def _counts(replicas: int | None, least: int | None, most: int | None) -> dict[str, int | None]:
    if replicas is not None:
        counts: dict[str, int | None] = {"replicas_min": replicas, "replicas_max": replicas}
        return counts
    if least is not None or most is not None:
        low = least or 1
        return {"replicas_min": low, "replicas_max": max(low, most) if most else low}
    return {}


def _resources(cpu: float | None, memory: str | None, gpu: int | None) -> Resources | None:
    from holdfast.cli.agent_options import memory_bytes
    from holdfast.wire.room import Resources as Room

    if cpu is None and memory is None and gpu is None:
        return None
    return Room(1.0 if cpu is None else cpu, memory_bytes(memory) or 0, gpu or 0)


def _steps(canary: str | None) -> tuple[int, ...] | None:
    from holdfast.serve.records import WEIGHT_TOTAL

    if canary is None:
        return None
    if canary == "no":
        return ()
    try:
        shares = [float(word.strip(" %")) for word in canary.split(",")]
    except ValueError:
        raise Usage(f"--canary {canary} is not percents", fix="--canary 5,25,50") from None
    return tuple(round(share * WEIGHT_TOTAL / _PERCENT) for share in shares)


def _seconds(option: str, text: str | None) -> float | None:
    from holdfast.control import units

    if text is None:
        return None
    found = units.seconds_of(text)
    if found is None and text.replace(".", "", 1).isdigit():
        return float(text)
    if found is None:
        raise Usage(f"{option} {text} is not {units.DURATION_EXAMPLE}", fix=f"{option} 30s")
    return found
