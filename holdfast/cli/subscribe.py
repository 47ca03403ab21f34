"""`holdfast subscribe`: a function that is called for each record of a topic, kept alive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import absence, output
from holdfast.cli.jobs.logs import LinePrinter
from holdfast.cli.options import ClusterOption, JsonOption, client_of
from holdfast.client import texts
from holdfast.client.subscribing import SubscribeOptions

if TYPE_CHECKING:
    from holdfast.client import Job

EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast subscribe orders --run handler.py:fn --group billing[/]      until Ctrl-C

  [cyan]holdfast subscribe orders --run handler.py:fn --group billing --detach --workers 4[/]

  [cyan]holdfast subscribe orders --run handler.py:fn --group big --filter 'value.amount > 100'[/]

  [cyan]holdfast topics tail orders.dead[/]                                   what was given up


[bold]A handler[/]

  def fn(record):               record.value is decoded JSON; also key, headers, offset, at

      ...                       an error is tried again, then the record goes to orders.dead
"""


def subscribe(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Whose records.")],
    run: Annotated[
        str, typer.Option(metavar="FILE.py:FUNCTION", help="What is called for each record.")
    ],
    group: Annotated[str, typer.Option(help="Whose offsets it goes on from; members share them.")],
    workers: Annotated[int, typer.Option(min=1, help="So many processes share the topic.")] = 1,
    name: Annotated[
        str | None, typer.Option(help="The job's name.", show_default="subscribe.GROUP")
    ] = None,
    tries: Annotated[
        int | None, typer.Option(min=1, help="Of each record.", show_default="5")
    ] = None,
    dead: Annotated[
        str, typer.Option(metavar="TOPIC", help="For dead letters.", show_default="TOPIC.dead")
    ] = "",
    start: Annotated[
        str, typer.Option(help="Where a new group begins: earliest or latest.")
    ] = "earliest",
    codec: Annotated[str, typer.Option(help="json, text or bytes.")] = "json",
    condition: Annotated[
        str, typer.Option("--filter", help="Only records that meet this condition.")
    ] = "",
    cpu: Annotated[float | None, typer.Option(help="Cores of each worker.")] = None,
    memory: Annotated[str | None, typer.Option(help="Memory of each worker, 1GiB.")] = None,
    queue: Annotated[str | None, typer.Option(help="Whose share it takes.")] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return; it goes on in the cluster.")
    ] = False,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Call a function for each record of a topic, at least once, with retries and dead letters."""
    wanted = SubscribeOptions(name=name, workers=workers, tries=tries, dead=dead, start=start)
    wanted |= SubscribeOptions(codec=codec, filter=condition, cpu=cpu, memory=memory, queue=queue)
    with client_of(cluster) as client:
        job = client.subscribe(topic, run, group=group, **wanted)
        if as_json:
            output.show_json({"name": job.name, "topic": topic, "group": group})
            return
        letters = dead or f"{topic}.dead"
        output.out().print(
            f"{run} is subscribed to {topic} as group {group}, with"
            f" {texts.many(workers, 'worker')}; dead letters go to {letters}",
            markup=False,
            soft_wrap=True,
        )
        if detach:
            output.note(f"next: holdfast logs {job.name} -f   end it: holdfast stop {job.name}")
        else:
            _follow(job, several=workers > 1)


def _follow(job: Job, *, several: bool) -> None:
    """Show what it writes until Ctrl-C; then end it."""
    output.note("Ctrl-C ends it, after the records under way")
    try:
        LinePrinter(prefix=several, live=True).show(job.logs(follow=True))
    except KeyboardInterrupt:
        job.cancel(wait=True, progress=absence.ProgressLines())
        output.done(f"{job.name} is stopped", f"holdfast remove {job.name}")
