"""`holdfast locks` and `holdfast config`: what the jobs of a queue share."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import completion, output
from holdfast.cli.options import ClusterOption, JsonOption, missing, opened
from holdfast.client import texts

if TYPE_CHECKING:
    from holdfast.coordination.contenders import Contender
    from holdfast.coordination.shared import LockUse

LOCKS_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast locks[/]                    who holds and who waits, in all queues

  [cyan]holdfast locks --queue trials[/]


A script takes one with [cyan]run.lock("licence")[/] or [cyan]run.semaphore("bandwidth", 3)[/].
"""
CONFIG_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast config set default thresholds '[0.1, 0.9]'[/]   JSON, or a plain text

  [cyan]holdfast config get default thresholds[/]

  [cyan]holdfast config list default[/]


Workers of the queue that follow it with [cyan]run.config("thresholds")[/] are told at once.
"""

app = typer.Typer(
    help="Values that people change while the jobs of a queue run.",
    epilog=CONFIG_EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode="rich",
)

QueueArgument = Annotated[
    str, typer.Argument(metavar="QUEUE", help="The queue's name.", autocompletion=completion.queues)
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The value's name.")]


def locks(
    queue: Annotated[str | None, typer.Option(help="Only those of this queue.")] = None,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """List locks and semaphores: who holds them, who waits, since when."""
    from holdfast.coordination import shared

    with opened(cluster) as found:
        known = shared.holdings(found.session, queue)
    if as_json:
        output.show_json({"locks": [_document(one) for one in known]})
        return
    if not known:
        output.note("nobody holds a lock, and nobody waits for one")
        return
    columns = ["queue", "name", "kind", "who", "state", "token", "since"]
    output.show_table(columns, [row for one in known for row in _rows(one)], right=("token",))


@app.command("get", epilog=CONFIG_EXAMPLES)
def get(
    queue: QueueArgument,
    name: NameArgument,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a value."""
    from holdfast.coordination import ABSENT, shared

    with opened(cluster) as found:
        value, version = shared.config(found.session, queue, name).get()
        known = shared.names(found.session, queue) if version == ABSENT else []
    if version == ABSENT:
        raise missing(f"value in queue {queue} named", name, known, f"holdfast config list {queue}")
    if as_json:
        output.show_json({"queue": queue, "name": name, "value": value, "version": version})
        return
    output.out().print(json.dumps(value), markup=False, highlight=False, soft_wrap=True)


@app.command("set", epilog=CONFIG_EXAMPLES)
def set_(
    queue: QueueArgument,
    name: NameArgument,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="JSON, or a plain text.")],
    cluster: ClusterOption = None,
) -> None:
    """Set a value: workers that follow it are told at once."""
    from holdfast.coordination import shared

    with opened(cluster) as found:
        version = shared.put(found.session, queue, name, _value(value))
    output.out().print(f"{name} of queue {queue} has version {version}", markup=False)


@app.command("list", epilog=CONFIG_EXAMPLES)
def list_(queue: QueueArgument, cluster: ClusterOption = None, as_json: JsonOption = False) -> None:
    """List the values of a queue."""
    from holdfast.coordination import shared

    with opened(cluster) as found:
        session = found.session
        known = {
            name: shared.config(session, queue, name).get() for name in shared.names(session, queue)
        }
    if as_json:
        rows = [{"name": name, **one._asdict()} for name, one in known.items()]
        output.show_json({"queue": queue, "values": rows})
        return
    if not known:
        output.note(f"queue {queue} has no values; next: holdfast config set {queue} NAME VALUE")
        return
    shown = [(name, one.version, json.dumps(one.value)) for name, one in known.items()]
    output.show_table(["name", "version", "value"], shown, right=("version",))


@app.command("remove", epilog=CONFIG_EXAMPLES)
def remove(queue: QueueArgument, name: NameArgument, cluster: ClusterOption = None) -> None:
    """Remove a value: workers that follow it have their default again."""
    from holdfast.coordination import shared

    with opened(cluster) as found:
        if not shared.remove(found.session, queue, name):
            known = shared.names(found.session, queue)
            what = f"value in queue {queue} named"
            raise missing(what, name, known, f"holdfast config list {queue}")
    output.out().print(f"{name} of queue {queue} is removed", markup=False)


def _value(text: str) -> Any:
    """What JSON says, or the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _document(one: LockUse) -> dict[str, Any]:
    return {
        "queue": one.queue,
        "kind": one.kind,
        "name": one.name,
        "count": one.count,
        "holders": [_who(each) for each in one.holders],
        "waiters": [_who(each) for each in one.waiters],
    }


def _who(one: Contender) -> dict[str, Any]:
    worker, _, node = one.name.rpartition("@")
    return {"worker": worker, "node": node, "token": one.token, "since_ms": one.since_ms}


def _rows(one: LockUse) -> list[tuple[object, ...]]:
    kind = one.kind if one.kind == "lock" else f"{one.kind} of {one.count}"
    now_s = time.time()
    return [
        (
            one.queue,
            one.name,
            kind,
            each.name,
            state,
            each.token if state == "holds" else "-",
            texts.ago(each.since_ms / 1000, now_s),
        )
        for state, line in (("holds", one.holders), ("waits", one.waiters))
        for each in line
    ]
