"""`holdfast why JOB`: what was decided about it and why, and what it waits for now. Of a service
the same: what was asked, what the controller decided, and how far a rollout is."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.text import Text

from holdfast.cli import absence, output
from holdfast.cli.jobs import phrases
from holdfast.cli.jobs.phrases import given_settings
from holdfast.cli.options import ClusterOption, JobArgument, JsonOption, client_of
from holdfast.client import texts
from holdfast.client.job_actions import is_service
from holdfast.client.job_status import workers_in
from holdfast.client.service_status import ObservedService, variants_of

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.control.decide.facts import JobRecord
    from holdfast.wire.history import HistoryEntry

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
    "PlaceWorker": ("workers", "green"),
    "DrainWorker": ("leaving", "yellow"),
    "UnplaceWorker": ("gone", "yellow"),
    "WriteView": ("view", "green"),
    "BeginCheckpoint": ("checkpoint", "dim"),
    "CommitCheckpoint": ("committed", "blue"),
    "AbandonCheckpoint": ("given up", "yellow"),
    "DropCheckpoint": ("dropped", "dim"),
    "MarkCheckpointUnreadable": ("damaged", "bold red"),
    "RecoverCheckpoints": ("recovery", "bold"),
    "HaltUpdate": ("stopped", "bold red"),
    "MoveTrigger": ("topic", "cyan"),
    "StartJob": ("starts", "green"),
    "ForgetJob": ("removed", "dim"),
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
class HistoryLine:
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

    with client_of(cluster, reads=True) as client:
        found = client.found
        follow = follow and not found.down
        if is_service(found, name):
            show_service(client, name, count, follow=follow, as_json=as_json)
            return
        handle = client.job(name)
        job, entries = handle.facts(), handle.history()
        if as_json:
            output.show_json(document(job, entries[-count:]))
            return
        show_last(history_lines(entries, every=every), count, name)
        if follow:
            follow_history(name, entries, handle.history, lambda: handle.facts().status.phase.final)
            job, entries = handle.facts(), handle.history()
        asks = bool(job.settings or job.spec.requirements) and not job.status.phase.final
        seen, _ = found.seen() if asks else ([], "")
        ended = job.status.phase.final or found.down
        missing = [] if ended else absence.warnings(found, services=False)
    _show_now(job, entries, down=found.down)
    for _, facts in workers_in(seen, name).values():
        if facts.preparing:
            where = f"worker {facts.worker} is {phrases.preparing(facts)}"
            output.out().print(Text(f"{'':10}{where}"), soft_wrap=True)
    for given in given_settings(job, workers_in(seen, name)):
        if given.taken is False:
            output.out().print(Text(f"{'':10}{given.text}", "yellow"))
    absence.warn(missing)


def show_last(lines: Sequence[HistoryLine], count: int, name: str) -> None:
    """The last `count` of them, and how to see the rest."""
    if len(lines) > count:
        output.note(f"{len(lines) - count} earlier lines: holdfast why {name} -n {len(lines)}")
    _show(lines[-count:])


def document(job: JobRecord, entries: Sequence[HistoryEntry]) -> dict[str, Any]:
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


def history_lines(entries: Iterable[HistoryEntry], *, every: bool) -> list[HistoryLine]:
    """A line for each decision. Unless `every`: without the orders that carry it out, and one
    for all checkpoints in a row that went well."""
    lines: list[HistoryLine] = []
    run: list[HistoryEntry] = []
    for entry in entries:
        if not every and entry.what in _ORDERS:
            continue
        if not every and entry.what in _ROUTINE:
            run.append(entry)
            continue
        lines += _merged_checkpoints(run)
        run = []
        before = [] if every else [line.reason for line in lines]
        reason = _without_repeated_traceback(entry.reason, before)
        lines.append(HistoryLine(entry.at_s, entry.term, entry.what, reason))
    return lines + _merged_checkpoints(run)


def _without_repeated_traceback(reason: str, before: Sequence[str]) -> str:
    """A traceback that an earlier line has told whole is not told again: its cause is enough."""
    from holdfast.wire.causes import TRACEBACK, cause_of

    head, mark, rest = reason.strip().partition(TRACEBACK)
    whole = f"{mark}{rest}" if mark else head
    # Of a status the last line is a remark, behind what was told.
    for trace, remark in ((whole, ""), whole.rpartition("\n")[::2]):
        if trace.count("\n") >= 2 and any(trace in each for each in before):
            return f"{head if mark else ''}{cause_of(trace).text} {remark}".rstrip()
    return reason


def _merged_checkpoints(run: list[HistoryEntry]) -> list[HistoryLine]:
    """A run of routine checkpoints as one line, with one more for what has only begun."""
    commits = [entry for entry in run if entry.what == "CommitCheckpoint"]
    lines = []
    if len(commits) == 1:
        only = commits[0]
        lines.append(HistoryLine(only.at_s, only.term, only.what, only.reason))
    elif commits:
        first, last = commits[0], commits[-1]
        steps = [found[1] for each in (first, last) if (found := _STEP.search(each.reason))]
        span = f" of steps {' to '.join(steps)}" if len(steps) == 2 else ""
        took = texts.span(last.at_s - first.at_s)
        reason = f"{len(commits)} checkpoints{span}, within {took}"
        lines.append(HistoryLine(last.at_s, last.term, last.what, reason))
    if run and run[-1].what == "BeginCheckpoint":
        last = run[-1]
        lines.append(HistoryLine(last.at_s, last.term, last.what, last.reason))
    return lines


def _show(lines: Sequence[HistoryLine], day: str = "", term: int | None = None) -> None:
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


def _show_line(line: HistoryLine, clock: str) -> None:
    word, style = _WORDS.get(line.what, (line.what.lower(), ""))
    text = line.reason.removeprefix(_ASKED)
    rows = _rows(output.with_own_paths(text).strip())
    head = Text(f"{clock:<8}  ", style="dim")
    head.append(f"{word:<10} ", style=style)
    console = output.out()
    first, *more = (
        output.wrapped(rows[0], console.width - _INDENT) if console.is_terminal else rows[:1]
    )
    console.print(head.append(first))
    for row in more:
        console.print(Text(f"{'':{_INDENT}}{row}"))
    _indented(rows[1:])


def _rows(text: str) -> list[str]:
    """The lines of a reason; a traceback begins in one of its own."""
    from holdfast.wire.causes import TRACEBACK

    before, mark, after = text.partition(TRACEBACK)
    if mark and before.strip():
        return [before.strip(), *f"{mark}{after}".splitlines()]
    return text.splitlines() or [""]


def _indented(rows: Sequence[str]) -> None:
    cut = len(rows) - _TAIL_LINES
    if cut > 0:
        output.out().print(Text(f"{'':{_INDENT}}… {cut} lines …", style="dim"))
    for row in rows[max(0, cut) :]:
        output.out().print(Text(f"{'':{_INDENT}}{row}"))


def follow_history(
    name: str,
    known: Sequence[HistoryEntry],
    read: Callable[[], Sequence[HistoryEntry]],
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
                _show(history_lines(fresh, every=True), texts.day(fresh[0].at_s), term)
                last, term = fresh[-1], fresh[-1].term or term
            if ended:
                return
            time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        output.note(f"\n{name} goes on")
        raise


def _after(entries: Sequence[HistoryEntry], last: HistoryEntry | None) -> list[HistoryEntry]:
    """What came after `last`; all that is kept, when that is not kept any more."""
    if last is None:
        return list(entries)
    for at in range(len(entries) - 1, -1, -1):
        if entries[at] == last:
            return list(entries[at + 1 :])
    return [entry for entry in entries if entry.at_s > last.at_s]


def _show_now(job: JobRecord, entries: Sequence[HistoryEntry], *, down: bool = False) -> None:
    """How it is now. What the end of the story has just said is not said again."""
    status = job.status
    console = output.out()
    head = Text("now       ", style="bold").append_text(output.phase_text(status.phase.value))
    head.append(f" since {texts.clock(status.since_s)} ({texts.ago(status.since_s)})")
    console.print(head)
    hint = _hint(job, down=down)
    if status.phase.value == "failed":
        # Its last line is its cause, whatever was said before; a remedy may follow.
        if hint:
            output.note(f"{'':10}next: {hint}")
        _failed(job)
        return
    told_last = bool(entries) and entries[-1].reason == status.reason
    rows = [] if told_last else status.reason.strip().splitlines()
    for row in rows[-_TAIL_LINES:]:
        output.say(console, output.with_own_paths(row), indent=10)
    if status.phase.value in _AT_REST and phrases.step_reached(job):
        console.print(Text(f"{'':10}{phrases.reached_text(job)}"))
    if job.failures:
        last = job.failures[-1]
        console.print(
            Text(f"{'':10}{texts.many(len(job.failures), 'failure')} so far; the last, ", "yellow")
            + Text(f"{texts.ago(last.at_s)} ago, of worker {last.worker} at step {last.step}:")
        )
        _indented(output.with_own_paths(last.reason).strip().splitlines())
    if hint:
        output.note(f"next: {hint}")


def _failed(job: JobRecord) -> None:
    console = output.out()
    if not job.spec.serves:
        console.print(Text(f"{'':10}it failed {phrases.reached_text(job)}"))
    for name, text in phrases.cause_rows(job.status.reason):
        if name == "tried":
            continue  # the story has told it
        message = text if name == "cause" else f"{name}: {text}"
        output.say(console, output.with_own_paths(message), indent=10)


def _hint(job: JobRecord, *, down: bool = False) -> str:
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


def show_service(client: Client, name: str, count: int, *, follow: bool, as_json: bool) -> None:
    service = client.service(name)
    entries = service.history()
    if as_json:
        from holdfast.cli.serve.services import document

        history = [
            {"at_s": each.at_s, "term": each.term, "what": each.what, "reason": each.reason}
            for each in entries[-count:]
        ]
        now = document(service.observe())
        output.show_json({"service": name, "history": history, "now": now})
        return
    show_last(history_lines(entries, every=True), count, name)
    if follow:
        follow_history(name, entries, service.history, lambda: False)
        entries = service.history()
    _show_service_now(service.observe(), entries[-1].reason if entries else "")
    absence.warn(absence.warnings(client.found, services=True))


def _show_service_now(observed: ObservedService, last_reason: str) -> None:
    """How it is now. `last_reason`: the end of its story, which is not said again."""
    plan = observed.plan
    stage = plan.stage.value if plan else "nothing is decided yet"
    since = f" since {texts.clock(plan.since_s)} ({texts.ago(plan.since_s)})" if plan else ""
    console = output.out()
    console.print(Text("now       ", style="bold").append(f"{stage}{since}"))
    rows = [f"requests go to version {variants_of(plan)}"] if plan and plan.variants else []
    progress = observed.progress()
    rows.append(
        progress.removesuffix(f"; {texts.one_line(last_reason)}") if last_reason else progress
    )
    rows.append(observed.outlook())
    rows.append(f"replicas: serve.{observed.name} is {observed.doing}")
    if why_not := observed.failed():
        rows.append(f"version {observed.wanted} was taken back: {why_not}")
    if dropped := observed.dropped():
        rows.append(dropped)
    for row in rows:
        output.say(console, output.with_own_paths(row), indent=10)
    hints = [f"holdfast why serve.{observed.name}", f"holdfast logs serve.{observed.name}"]
    if observed.failed():
        hints.append(f"holdfast rollout {observed.name} (to try again)")
    output.note(f"next: {'   '.join(hints)}")
