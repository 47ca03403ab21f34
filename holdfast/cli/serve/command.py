"""`holdfast serve`: from a published model to an address that answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from holdfast.cli import absence, completion, output
from holdfast.cli.options import ClusterOption, JsonOption, client_of
from holdfast.client import serve_settings
from holdfast.client.serving import ServeRequest

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.cli.serve.output import ServedSummary

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
HELP = """Serve a model, and print an address that answers.

Starts replicas by the cluster's agents, and on this machine a controller and a gateway if the
cluster has none. A model that is served already is changed in place: no request is lost. What
is not given stays as it is.
"""
# Gateways that share one address: each has all of Envoy, and checks every replica by itself.
GATEWAYS_TOGETHER_MAX: Final = 8

Reference = Annotated[
    str,
    typer.Argument(
        metavar="MODEL[@ALIAS|@N]", help="What to serve.", autocompletion=completion.models
    ),
]
Name = Annotated[str | None, typer.Option("--service", help="Its name; otherwise the model's.")]
Replicas = Annotated[int | None, typer.Option(min=1, help="So many, always.")]
Least = Annotated[int | None, typer.Option("--min", min=1, help="Scale from …")]
Most = Annotated[int | None, typer.Option("--max", min=1, help="… to so many, by load.")]
Cpu = Annotated[float | None, typer.Option(min=0, help="Cores of each replica; 1.")]
Memory = Annotated[str | None, typer.Option(help="Memory of each replica: 512MiB …")]
Gpu = Annotated[int | None, typer.Option(min=0, help="GPUs of each replica.")]
Canary = Annotated[
    str | None, typer.Option(help="Shares of a new version, in percent: 5,25,50; `no`: none.")
]
Hold = Annotated[str | None, typer.Option(help="How long each share is held: 30s, 5m.")]
Rate = Annotated[
    float | None, typer.Option(min=0, help="Requests a second for each gateway; 0: no limit.")
]
Timeout = Annotated[str | None, typer.Option(help="For one request: 10s.")]
Batch = Annotated[int | None, typer.Option(min=1, help="Rows computed together.")]
QueueMax = Annotated[
    int | None, typer.Option("--queue-max", min=1, help="Requests that may wait in a replica.")
]
WaitMax = Annotated[
    str | None,
    typer.Option("--wait-max", help="Refuse what would wait longer; a quarter of --timeout."),
]
BodyMax = Annotated[str | None, typer.Option("--body-max", help="Of one request: 64MiB.")]
BodiesMax = Annotated[
    str | None, typer.Option("--bodies-max", help="Of all requests that a replica has in hand.")
]
Ready = Annotated[str | None, typer.Option(help="A version must be loaded by then: 5m.")]
RequestsMin = Annotated[
    int | None, typer.Option("--requests-min", min=0, help="Fewer say nothing about a version.")
]
ErrorsMax = Annotated[
    str | None, typer.Option("--errors-max", help="Above the old version's own share: 1%.")
]
SlowerMax = Annotated[
    float | None, typer.Option("--slower-max", min=1, help="Times the old version's p99: 2.")
]
SlowerSlack = Annotated[
    str | None, typer.Option("--slower-slack", help="A smaller difference is noise: 5ms.")
]
GuardNonfinite = Annotated[
    str | None,
    typer.Option("--guard-nonfinite", help="Answers with NaN or infinity: 0%; `off`: any."),
]
GuardRange = Annotated[
    list[str] | None,
    typer.Option(
        "--guard-range", metavar="OUTPUT=LOW:HIGH", help="Where its values lie; `off`: anywhere."
    ),
]
GuardOutside = Annotated[
    str | None, typer.Option("--guard-outside", help="Answers outside of their range: 0%.")
]
GuardShift = Annotated[
    str | None,
    typer.Option(
        "--guard-shift", help="Of an output, in standard deviations of the old version's; `off`."
    ),
]
GuardDisagree = Annotated[
    str | None,
    typer.Option("--guard-disagree", help="Rows of another class than the old version's; `off`."),
]
Shadow = Annotated[
    str | None, typer.Option(help="Of a replica's time, to compare versions with: 5%.")
]
BreakerFailures = Annotated[
    int | None,
    typer.Option("--breaker-failures", min=1, help="Broken requests in a row open it: 5."),
]
BreakerOpen = Annotated[
    str | None, typer.Option("--breaker-open", help="It stays open for so long at first: 2s …")
]
BreakerOpenMax = Annotated[
    str | None, typer.Option("--breaker-open-max", help="… and at last: 20s.")
]
ConnectTimeout = Annotated[
    str | None, typer.Option("--connect-timeout", help="Of a gateway to a replica: 1s.")
]
InFlightMax = Annotated[
    int | None, typer.Option("--in-flight-max", min=1, help="Of a gateway, to one version.")
]
Retries = Annotated[
    str | None, typer.Option(help="Of the requests in flight, that may be tried again: 100%.")
]
Cache = Annotated[int | None, typer.Option(min=0, help="Answers that each replica keeps.")]
Redis = Annotated[str | None, typer.Option(help="redis://… of a cache for all.")]
Sticky = Annotated[
    str | None, typer.Option(help="The header that names a user: a variant keeps its users.")
]
RouteBy = Annotated[
    str | None,
    typer.Option(
        "--route-by",
        metavar="HEADER",
        help="Requests with the same value of it go to the same replica; `off`.",
    ),
]
LogPredictions = Annotated[
    bool | None,
    typer.Option("--log-predictions/--no-log-predictions", help="Keep what was answered."),
]
PredictionsTopic = Annotated[
    bool | None,
    typer.Option(
        "--predictions-topic/--no-predictions-topic",
        help="Tell what was answered to the topic predictions.SERVICE.",
    ),
]
PredictionsSample = Annotated[
    str | None, typer.Option("--predictions-sample", help="A share of the requests: 10%.")
]
PredictionsRedact = Annotated[
    list[str] | None,
    typer.Option(
        "--predictions-redact",
        metavar="INPUT",
        help="Its values are in no log and no topic; `off`: all are.",
    ),
]
PredictionsKey = Annotated[
    list[str] | None,
    typer.Option(
        "--predictions-key", metavar="NAME", help="An input or parameter that names an entity."
    ),
]
PredictionsBlob = Annotated[
    str | None,
    typer.Option("--predictions-blob", help="Larger tensors go to the blob store: 64KiB."),
]
PredictionsKeep = Annotated[
    str | None, typer.Option("--predictions-keep", help="The topic keeps them for: 7d.")
]
Key = Annotated[bool, typer.Option("--key", help="Ask for an API key; a new one is shown, once.")]
Priority = Annotated[int | None, typer.Option(help="Above jobs of lower ones; 100.")]
Queue = Annotated[str | None, typer.Option(help="Whose share of the machines it takes.")]
Gateway = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="A gateway here; else 127.0.0.1:8080 …")
]
Gateways = Annotated[
    int | None,
    typer.Option(min=1, max=GATEWAYS_TOGETHER_MAX, help="So many share that address; 1."),
]
Region = Annotated[str, typer.Option(help="The region of a gateway started now.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Return at once.")]


def serve(
    reference: Reference,
    service: Name = None,
    replicas: Replicas = None,
    least: Least = None,
    most: Most = None,
    cpu: Cpu = None,
    memory: Memory = None,
    gpu: Gpu = None,
    canary: Canary = None,
    hold: Hold = None,
    rate: Rate = None,
    timeout: Timeout = None,
    batch: Batch = None,
    queue_max: QueueMax = None,
    wait_max: WaitMax = None,
    body_max: BodyMax = None,
    bodies_max: BodiesMax = None,
    ready: Ready = None,
    requests_min: RequestsMin = None,
    errors_max: ErrorsMax = None,
    slower_max: SlowerMax = None,
    slower_slack: SlowerSlack = None,
    guard_nonfinite: GuardNonfinite = None,
    guard_range: GuardRange = None,
    guard_outside: GuardOutside = None,
    guard_shift: GuardShift = None,
    guard_disagree: GuardDisagree = None,
    shadow: Shadow = None,
    breaker_failures: BreakerFailures = None,
    breaker_open: BreakerOpen = None,
    breaker_open_max: BreakerOpenMax = None,
    connect_timeout: ConnectTimeout = None,
    in_flight_max: InFlightMax = None,
    retries: Retries = None,
    cache: Cache = None,
    redis: Redis = None,
    sticky: Sticky = None,
    route_by: RouteBy = None,
    log_predictions: LogPredictions = None,
    predictions_topic: PredictionsTopic = None,
    predictions_sample: PredictionsSample = None,
    predictions_redact: PredictionsRedact = None,
    predictions_key: PredictionsKey = None,
    predictions_blob: PredictionsBlob = None,
    predictions_keep: PredictionsKeep = None,
    key: Key = False,
    priority: Priority = None,
    queue: Queue = None,
    gateway: Gateway = None,
    gateways: Gateways = None,
    region: Region = "",
    no_wait: NoWait = False,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    given = {name: value for name, value in locals().items() if value is not None}
    changes = serve_settings.changes(given)
    request = ServeRequest(reference, service, changes, key, gateway, region, gateways)
    _serve(request, cluster, wait=not no_wait, as_json=as_json)


serve.__doc__ = HELP  # its options alone fill a function


def _serve(request: ServeRequest, cluster: Path | None, *, wait: bool, as_json: bool) -> None:
    summary = _served(request, cluster, wait=wait)
    if as_json:
        output.show_json(summary.document())
    else:
        summary.show(waited=wait)


def _served(request: ServeRequest, cluster: Path | None, *, wait: bool) -> ServedSummary:
    from holdfast.cli.serve import output as serve_output

    with client_of(cluster) as client:
        with absence.progress(request.name) as show:
            service = client.ensure_served(request, progress=show)
            if wait:
                # Of settings alone: a version that has failed meanwhile is another matter.
                service.wait_ready(progress=show)
        return serve_output.served_summary(client, service)
