"""`holdfast why JOB`: what was decided about it and why, and what it waits for now. Of a service
the same: what was asked, what the conductor decided, and how far a rollout is."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.text import Text

from holdfast.cli import absence, listing, output, phrases
from holdfast.cli.given import given_settings
from holdfast.cli.opening import ClusterOption, JobArgument, JsonOption, client_of
from holdfast.client import texts
from holdfast.client.job_status import workers_in

if TYPE_CHECKING:
    from holdfast.control.decide.facts import Job
    from holdfast.control.store.codec import Entry

EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast why counter[/]               its story, and what it waits for now

  [cyan]holdfast why counter --follow[/]      and what happens next, as it happens

  [cyan]holdfast why counter -n 500 --all[/]  also every order to agents and every checkpoint

  [cyan]holdfast why digits[/]                a service; its replicas: holdfast why serve.digits
"""

# What a decision is called for people: a word, and its colour.
_WORDS: Final = {
    "Asked": ("asked", "bold"),
    "SetStatus": ("status", "cyan"),
    "Place": ("workers", "green"),
    "Drain": ("leaving", "yellow"),
    "Unplace": ("gone", "yellow"),
    "WriteView": ("view", "green"),
    "BeginCheckpoint": ("checkpoint", "dim"),
    "CommitCheckpoint": ("committed", "blue"),
    "AbandonCheckpoint": ("given up", "yellow"),
    "DropCheckpoint": ("dropped", "dim"),
    "CondemnCheckpoint": ("damaged", "bold red"),
    "RecoverCheckpoints": ("recovery", "bold"),
    "HaltUpdate": ("stopped", "bold red"),
    "StopWorker": ("ending", "yellow"),
    "Starting": ("starting", "cyan"),
    "Steady": ("steady", "green"),
    "Loading": ("loading", "cyan"),
    "Shifting": ("shifting", "cyan"),
    "Split": ("split", "cyan"),
    "Trouble": ("trouble", "bold red"),
}
# Orders that follow from a decision that has its own line.
_ORDERS: Final = ("Forget", "GiveSettings", "GiveView", "StartWorker", "TakeShare")
_ROUTINE: Final = ("BeginCheckpoint", "CommitCheckpoint", "DropCheckpoint")
_ASKED: Final = "its user asked: "  # the word in front of the line says that
_STEP: Final = re.compile(r"step (\d+)")
_LOOK_S: Final = 0.5
_AT_REST: Final = ("paused", "stopped", "succeeded")
# Where reasons begin: after the time and the word.
_INDENT: Final = 21
# Lines of a reason that has many: of a traceback, its end.
_TAIL_LINES: Final = 15


@dataclass(frozen=True)
class Line:
    """What is shown of one decision, or of a run of routine ones."""

    at_s: float
    term: int
    what: str
    reason: str


def why(
    name: JobArgument,
    count: Annotated[int, typer.Option("-n", min=1, help="The last so many lines.")] = 50,
    every: Annotated[
        bool, typer.Option("--all", "-a", help="Also orders, and every checkpoint.")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it happens.")] = False,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Why a job is as it is: every decision with its reason, and what it waits for."""
    from holdfast.cli.serve import why as service_why

    with client_of(cluster, reads=True) as client:
        found = client.found
        follow = follow and not found.down
        if service_why.is_service(found, name):
            service_why.why(client, name, count, follow=follow, as_json=as_json)
            return
        handle = client.job(name)
        job, entries = handle.facts(), handle.history()
        if as_json:
            output.show_json(document(job, entries[-count:]))
            return
        show_last(told(entries, every=every), count, name)
        if follow:
            followed(name, entries, handle.history, lambda: handle.facts().status.phase.final)
            job, entries = handle.facts(), handle.history()
        asks = bool(job.settings or job.spec.requirements) and not job.status.phase.final
        seen, _ = found.seen() if asks else ([], "")
        ended = job.status.phase.final or found.down
        missing = [] if ended else absence.warnings(found, services=False)
    _now(job, entries, down=found.down)
    for _, facts in workers_in(seen, name).values():
        if facts.preparing:
            where = f"worker {facts.worker} is {phrases.preparing(facts)}"
            output.out().print(Text(f"{'':10}{where}"), soft_wrap=True)
    for given in given_settings(job, workers_in(seen, name)):
        if given.taken is False:
            output.out().print(Text(f"{'':10}{given.text}", "yellow"))
    absence.warn(missing)


def show_last(lines: Sequence[Line], count: int, name: str) -> None:
    """The last `count` of them, and how to see the rest."""
    if len(lines) > count:
        listing.note(f"{len(lines) - count} earlier lines: holdfast why {name} -n {len(lines)}")
    _show(lines[-count:])


def document(job: Job, entries: Sequence[Entry]) -> dict[str, Any]:
    """The story as JSON: each decision, then how the job is now."""
    return {
        "job": job.name,
        "history": [
            {"at_s": each.at_s, "term": each.term, "what": each.what, "reason": each.reason}
            for each in entries
        ],
        "now": {
            "phase": job.status.phase.value,
            "since_s": job.status.since_s,
            "reason": job.status.reason,
            "failures": [
                {"worker": each.worker, "at_s": each.at_s, "step": each.step, "reason": each.reason}
                for each in job.failures
            ],
        },
    }


def told(entries: Iterable[Entry], *, every: bool) -> list[Line]:
    """A line for each decision. Unless `every`: without the orders that carry it out, and one
    for all checkpoints in a row that went well."""
    lines: list[Line] = []
    run: list[Entry] = []
    for entry in entries:
        if not every and entry.what in _ORDERS:
            continue
        if not every and entry.what in _ROUTINE:
            run.append(entry)
            continue
        lines += _gathered(run)
        run = []
        before = [] if every else [line.reason for line in lines]
        reason = _without(entry.reason, before)
        lines.append(Line(entry.at_s, entry.term, entry.what, reason))
    return lines + _gathered(run)


def _without(reason: str, before: Sequence[str]) -> str:
    """A traceback that an earlier line has told whole is not told again: its cause is enough."""
    from holdfast.wire.causes import TRACEBACK, cause_of

    head, mark, rest = reason.strip().partition(TRACEBACK)
    whole = f"{mark}{rest}" if mark else head
    # Of a status the last line is a remark, behind what was told.
    for trace, remark in ((whole, ""), whole.rpartition("\n")[::2]):
        if trace.count("\n") >= 2 and any(trace in each for each in before):
            return f"{head if mark else ''}{cause_of(trace).text} {remark}".rstrip()
    return reason


def _gathered(run: list[Entry]) -> list[Line]:
    """A run of routine checkpoints as one line, with one more for what has only begun."""
    commits = [entry for entry in run if entry.what == "CommitCheckpoint"]
    lines = []
    if len(commits) == 1:
        only = commits[0]
        lines.append(Line(only.at_s, only.term, only.what, only.reason))
    elif commits:
        first, last = commits[0], commits[-1]
        steps = [found[1] for each in (first, last) if (found := _STEP.search(each.reason))]
        span = f" of steps {' to '.join(steps)}" if len(steps) == 2 else ""
        took = texts.span(last.at_s - first.at_s)
        reason = f"{len(commits)} checkpoints{span}, within {took}"
        lines.append(Line(last.at_s, last.term, last.what, reason))
    if run and run[-1].what == "BeginCheckpoint":
        last = run[-1]
        lines.append(Line(last.at_s, last.term, last.what, last.reason))
    return lines


def _show(lines: Sequence[Line], day: str = "", term: int | None = None) -> None:
    """Times to the second; the time, the day and the leader's term only where they change."""
    console = output.out()
    clock = ""
    for line in lines:
        today = texts.day(line.at_s)
        if today != day:
            console.print(Text(today, style="dim"))
            day = today
        if line.term and line.term != term:
            if term is not None:
                console.print(Text(f"          term {line.term}: another coordinator leads", "dim"))
            term = line.term
        same = clock == texts.clock(line.at_s)
        clock = texts.clock(line.at_s)
        _show_line(line, "" if same else clock)


def _show_line(line: Line, clock: str) -> None:
    word, style = _WORDS.get(line.what, (line.what.lower(), ""))
    said = line.reason.removeprefix(_ASKED)
    rows = _rows(listing.own_paths(said).strip())
    head = Text(f"{clock:<8}  ", style="dim")
    head.append(f"{word:<10} ", style=style)
    console = output.out()
    first, *more = (
        listing.broken(rows[0], console.width - _INDENT) if console.is_terminal else rows[:1]
    )
    console.print(head.append(first))
    for row in more:
        console.print(Text(f"{'':{_INDENT}}{row}"))
    _indented(rows[1:])


def _rows(said: str) -> list[str]:
    """The lines of a reason; a traceback begins in one of its own."""
    from holdfast.wire.causes import TRACEBACK

    before, mark, after = said.partition(TRACEBACK)
    if mark and before.strip():
        return [before.strip(), *f"{mark}{after}".splitlines()]
    return said.splitlines() or [""]


def _indented(rows: Sequence[str]) -> None:
    cut = len(rows) - _TAIL_LINES
    if cut > 0:
        output.out().print(Text(f"{'':{_INDENT}}… {cut} lines …", style="dim"))
    for row in rows[max(0, cut) :]:
        output.out().print(Text(f"{'':{_INDENT}}{row}"))


def followed(
    name: str,
    known: Sequence[Entry],
    read: Callable[[], Sequence[Entry]],
    over: Callable[[], bool],
) -> None:
    """Print what is added to the history until it is over."""
    last = known[-1] if known else None
    term = last.term if last else None
    try:
        while True:
            ended = over()
            entries = read()
            fresh = _after(entries, last)
            if fresh:
                _show(told(fresh, every=True), texts.day(fresh[0].at_s), term)
                last, term = fresh[-1], fresh[-1].term or term
            if ended:
                return
            time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        listing.note(f"\n{name} goes on")
        raise


def _after(entries: Sequence[Entry], last: Entry | None) -> list[Entry]:
    """What came after `last`; all that is kept, when that is not kept any more."""
    if last is None:
        return list(entries)
    for at in range(len(entries) - 1, -1, -1):
        if entries[at] == last:
            return list(entries[at + 1 :])
    return [entry for entry in entries if entry.at_s > last.at_s]


def _now(job: Job, entries: Sequence[Entry], *, down: bool = False) -> None:
    """How it is now. What the end of the story has just said is not said again."""
    status = job.status
    console = output.out()
    head = Text("now       ", style="bold").append_text(listing.phase(status.phase.value))
    head.append(f" since {texts.clock(status.since_s)} ({texts.ago(status.since_s)})")
    console.print(head)
    hint = _hint(job, down=down)
    if status.phase.value == "failed":
        # Its last line is its cause, whatever was said before; a remedy may follow.
        if hint:
            listing.note(f"{'':10}next: {hint}")
        _failed(job)
        return
    told_last = bool(entries) and entries[-1].reason == status.reason
    rows = [] if told_last else status.reason.strip().splitlines()
    for row in rows[-_TAIL_LINES:]:
        listing.say(console, listing.own_paths(row), indent=10)
    if status.phase.value in _AT_REST and phrases.step_reached(job):
        console.print(Text(f"{'':10}{phrases.reached_text(job)}"))
    if job.failures:
        last = job.failures[-1]
        console.print(
            Text(f"{'':10}{texts.many(len(job.failures), 'failure')} so far; the last, ", "yellow")
            + Text(f"{texts.ago(last.at_s)} ago, of worker {last.worker} at step {last.step}:")
        )
        _indented(listing.own_paths(last.reason).strip().splitlines())
    if hint:
        listing.note(f"next: {hint}")


def _failed(job: Job) -> None:
    console = output.out()
    if not job.spec.serves:
        console.print(Text(f"{'':10}it failed {phrases.reached_text(job)}"))
    for name, text in phrases.cause_rows(job.status.reason):
        if name == "tried":
            continue  # the story has told it
        said = text if name == "cause" else f"{name}: {text}"
        listing.say(console, listing.own_paths(said), indent=10)


def _hint(job: Job, *, down: bool = False) -> str:
    """The command that fits the phase."""
    if down and not job.status.phase.final:
        return f"the same `holdfast run` again; or holdfast up, then holdfast resume {job.name}"
    return {
        "queued": "holdfast nodes   holdfast queues",
        # The reason of a job that is stranded names both of its ways on.
        "paused": "" if job.is_stranded else f"holdfast resume {job.name}",
        "failed": f"holdfast logs {job.name} --stderr",
        "succeeded": f"holdfast checkpoints {job.name}" if job.checkpoints else "",
    }.get(job.status.phase.value, "")
