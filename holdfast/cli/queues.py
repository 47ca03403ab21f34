"""`holdfast queues` and `holdfast queue`: shares of the machines."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from holdfast.cli import completion, output
from holdfast.cli.options import ClusterOption, JsonOption, missing, opened
from holdfast.client import texts
from holdfast.wire.errors import Usage

if TYPE_CHECKING:
    from holdfast.control.decide.facts import JobRecord, QueueQuota
    from holdfast.wire.resources import Resources

T = TypeVar("T", int, float)
QUEUES_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast queues[/]

  [cyan]holdfast queue set production --cpu 8 --gpu 4 --limit-gpu 6[/]
"""
QUEUE_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast queue set production --cpu 8 --memory 64GiB --gpu 4[/]   guaranteed to its jobs

  [cyan]holdfast queue set trials --limit-gpu 2[/]                        never more than 2 GPUs

  [cyan]holdfast queue set trials --limit-gpu 0[/]                        no GPU at all

  [cyan]holdfast queue set trials --limit-gpu none[/]                     as many as there are

  [cyan]holdfast queue set trials --user trials[/]                        whom its workers run as

  [cyan]holdfast queue remove trials[/]


What is guaranteed and not used, others may borrow; they give it back when it is needed.
"""

app = typer.Typer(
    help="Change a queue: what its jobs are guaranteed, and the most they may have.",
    epilog=QUEUE_EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode="rich",
)

_NO_LIMIT = "0: none at all, 'none': no limit"

QueueArgument = Annotated[
    str, typer.Argument(metavar="QUEUE", help="The queue's name.", autocompletion=completion.queues)
]


def queues(cluster: ClusterOption = None, as_json: JsonOption = False) -> None:
    """List queues: what each is guaranteed, its limit, what its jobs use, who waits."""
    with opened(cluster) as found:
        known = found.plane.queues()
        jobs = list(found.plane.jobs().values())
    rows = [_row(name, known.get(name), jobs) for name in sorted(_names(known, jobs))]
    if as_json:
        output.show_json({"queues": rows})
        return
    columns = ["queue", "guaranteed", "limit", "in use", "running", "waiting"]
    whom = {row["name"]: row["user"] for row in rows if row["user"]}
    if whom:
        columns.append("runs as")
    shown = [
        (
            row["name"],
            _amount(row["guaranteed"]) or "-",
            _amount(row["limit"], zeros=True) or "-",
            _amount(row["used"]) or "-",
            row["running"],
            row["waiting"],
            *((whom.get(row["name"], "-"),) if whom else ()),
        )
        for row in rows
    ]
    output.show_table(columns, shown, right=("running", "waiting"))


@app.command("set", epilog=QUEUE_EXAMPLES)
def set_(
    name: QueueArgument,
    cpu: Annotated[float, typer.Option(min=0, help="Guaranteed cores.")] = 0.0,
    memory: Annotated[str, typer.Option(help="Guaranteed memory, such as 64GiB.")] = "",
    gpu: Annotated[int, typer.Option(min=0, help="Guaranteed GPUs.")] = 0,
    disk: Annotated[str, typer.Option(help="Guaranteed disk, such as 500GB.")] = "",
    limit_cpu: Annotated[str, typer.Option(help=f"The most cores; {_NO_LIMIT}.")] = "none",
    limit_memory: Annotated[str, typer.Option(help=f"The most memory; {_NO_LIMIT}.")] = "none",
    limit_gpu: Annotated[str, typer.Option(help=f"The most GPUs; {_NO_LIMIT}.")] = "none",
    limit_disk: Annotated[str, typer.Option(help=f"The most disk; {_NO_LIMIT}.")] = "none",
    user: Annotated[
        str | None,
        typer.Option(help="Whom its workers run as; '' for the agents' own. Stays if not named."),
    ] = None,
    cluster: ClusterOption = None,
) -> None:
    """Make a queue, or change it. Shares that are not named are 0, or without a limit."""
    from holdfast.control.decide.facts import QueueQuota
    from holdfast.control.decide.spec import Resources

    guaranteed = Resources(cpu, _bytes(memory), gpu, _bytes(disk, "--disk"))
    limit = _limit(limit_cpu, limit_memory, limit_gpu, limit_disk)
    if limit is not None and not guaranteed.fits(limit):
        raise Usage(
            f"queue {name} would be guaranteed more than its limit",
            why=f"{_plain(guaranteed)} guaranteed, {_plain(limit)} at most",
            fix="raise the limit, or leave it out",
        )
    with opened(cluster) as found:
        before = found.plane.queues().get(name)
        whom = _user(user) if user is not None else before.user if before else ""
        found.plane.put_queue(QueueQuota(name, guaranteed, limit, whom))
    runs = f"; its workers run as {whom}" if whom else ""
    shares = f"{_plain(guaranteed)} guaranteed, {_most(limit)}"
    output.out().print(f"queue {name}: {shares}{runs}", markup=False)
    output.note(f"next: a job takes it by the line `queue: {name}` in its file; holdfast queues")


@app.command("remove", epilog=QUEUE_EXAMPLES)
def remove(name: QueueArgument, cluster: ClusterOption = None) -> None:
    """Forget a queue's shares. Its jobs go on, and have what nobody is guaranteed."""
    with opened(cluster) as found:
        known = found.plane.queues()
        if name not in known:
            raise missing("queue", name, known, "holdfast queues")
        found.plane.remove_queue(name)
    output.out().print(f"queue {name} is removed", markup=False)


_USER = re.compile(r"[a-z_][a-z0-9_.-]{0,31}")  # as useradd takes it
# What no machine has: a limit that is none.
_UNLIMITED_CPU = 1e9
_UNLIMITED = 1 << 62
_NONE = "none"


def _limit(cpu: str, memory: str, gpu: str, disk: str) -> Resources | None:
    from holdfast.control.decide.spec import Resources

    if {cpu, memory, gpu, disk} <= {"", _NONE}:
        return None
    return Resources(
        _UNLIMITED_CPU if cpu in ("", _NONE) else _count(cpu, float, "--limit-cpu"),
        _UNLIMITED if memory in ("", _NONE) else _bytes(memory, "--limit-memory"),
        _UNLIMITED if gpu in ("", _NONE) else _count(gpu, int, "--limit-gpu"),
        _UNLIMITED if disk in ("", _NONE) else _bytes(disk, "--limit-disk"),
    )


def _count(text: str, kind: Callable[[str], T], option: str) -> T:
    try:
        found = kind(text)
        if 0 <= float(found) < _UNLIMITED_CPU:
            return found
    except ValueError:
        pass
    whole = "a whole number" if kind is int else "a number"
    raise Usage(
        f"{option} {text!r} is no limit",
        why=f"it is {whole}, or the word none",
        fix=f"{option} 2, {option} 0 for none at all, or {option} none for no limit",
    )


def _bytes(text: str, option: str = "--memory") -> int:
    from holdfast.control.decide import units

    if text in ("", "0"):
        return 0
    found = units.bytes_of(text)
    if found is None:
        raise Usage(f"{text!r} is not {units.SIZE_EXAMPLE}", fix=f"{option} 64GiB")
    return found


def _user(name: str) -> str:
    if name and not _USER.fullmatch(name):
        raise Usage(f"{name!r} is not the name of a user", fix="--user NAME, as `id NAME` knows it")
    if name == "root":
        raise Usage(
            "workers of a queue do not run as root",
            why="a queue has a user so that its jobs cannot read everything",
            fix="name another one, which every machine has: useradd --system --create-home NAME",
        )
    return name


def _names(known: dict[str, QueueQuota], jobs: list[JobRecord]) -> set[str]:
    living = {job.spec.queue for job in jobs if not job.status.phase.final}
    return {*known, *living, "default"}


def _row(name: str, queue: QueueQuota | None, jobs: list[JobRecord]) -> dict[str, Any]:
    from holdfast.control.decide.spec import Resources

    mine = [job for job in jobs if job.spec.queue == name and not job.status.phase.final]
    used = Resources()
    for job in mine:
        used += job.spec.resources.times(len(job.placements))
    return {
        "name": name,
        "guaranteed": _document(queue.guaranteed) if queue else None,
        "limit": _document(queue.limit) if queue and queue.limit else None,
        "user": queue.user if queue and queue.user else None,
        "used": _document(used),
        "running": sum(1 for job in mine if job.placements),
        "waiting": sum(1 for job in mine if job.status.phase.value == "queued"),
    }


def _document(resources: Resources) -> dict[str, float | int | None]:
    return {
        "cpu": resources.cpu if resources.cpu < _UNLIMITED_CPU else None,
        "memory_bytes": resources.memory_bytes if resources.memory_bytes < _UNLIMITED else None,
        "gpu": resources.gpu if resources.gpu < _UNLIMITED else None,
        "disk_bytes": resources.disk_bytes if resources.disk_bytes < _UNLIMITED else None,
    }


def _amount(resources: dict[str, float | int | None] | None, *, zeros: bool = False) -> str:
    """`8 cpu, 64 GiB, 4 gpu`. What is unlimited is left out, and what is 0 unless it matters."""
    parts = []
    for kind, value in (resources or {}).items():
        if value is None or (value == 0 and not zeros):
            continue
        size = texts.size(int(value)) if kind.endswith("_bytes") else ""
        sizes = {"memory_bytes": size, "disk_bytes": f"{size} disk"}
        parts.append(sizes.get(kind) or f"{value:g} {kind}")
    return ", ".join(parts)


def _most(limit: Resources | None) -> str:
    """`0 gpu at most`, or that there is no limit."""
    text = _amount(_document(limit), zeros=True) if limit is not None else ""
    return f"{text} at most" if text else "no limit"


def _plain(resources: Resources) -> str:
    return _amount(_document(resources)) or "nothing"
