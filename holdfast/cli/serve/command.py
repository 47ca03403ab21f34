"""`holdfast serve`: from a published model to an address that answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.cli import output
from holdfast.cli.opening import ClusterOption, JsonOption, client_of
from holdfast.cli.serve import opening as serving
from holdfast.cli.serve import options
from holdfast.client import serve_settings
from holdfast.client.serving import Asked

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.cli.serve.output import Told

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
    wishes = serve_settings.wishes(given)
    asked = Asked(reference, service, wishes, key, gateway, region, gateways)
    _show(_served(asked, cluster, wait=not no_wait), waited=not no_wait, as_json=as_json)


def _show(told: Told, *, waited: bool, as_json: bool) -> None:
    if as_json:
        output.show_json(told.document())
    else:
        told.show(waited=waited)


def _served(asked: Asked, cluster: Path | None, *, wait: bool) -> Told:
    from holdfast.cli.serve import output as serve_output

    with client_of(cluster) as client:
        with serving.progress(asked.name) as show:
            service = client.ensure_served(asked, progress=show)
            if wait:
                # Of settings alone: a version that has failed meanwhile is another matter.
                service.wait_ready(progress=show)
        return serve_output.told(client, service)
