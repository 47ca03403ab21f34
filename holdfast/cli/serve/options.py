"""The options of `holdfast serve`: what each is called, and its help."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from holdfast.cli import completing

# Gateways that share one address: each has all of Envoy, and checks every replica by itself.
GATEWAYS_TOGETHER_MAX: Final = 8

Reference = Annotated[
    str,
    typer.Argument(
        metavar="MODEL[@ALIAS|@N]", help="What to serve.", autocompletion=completing.models
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
    str | None, typer.Option(help="The header that names a user: an arm keeps its users.")
]
LogPredictions = Annotated[
    bool | None,
    typer.Option("--log-predictions/--no-log-predictions", help="Keep what was answered."),
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
