"""The options of `holdfast serve`: what each is called, and its help."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import completing

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
Region = Annotated[str, typer.Option(help="The region of a gateway started now.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Return at once.")]
