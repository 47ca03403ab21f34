"""What must be true of a history, whoever was killed. Pure: events in, `Violation` out.

The numbers are those of the design's list. Each check looks at the whole history and says what it
saw and when.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from tests.proofs.control.events import (
    Adopted,
    Answer,
    Commit,
    Decision,
    Event,
    Freed,
    Kept,
    Obeyed,
    Placed,
    Process,
    Status,
    Step,
    Term,
    View,
)

T = TypeVar("T")
FINAL = ("succeeded", "failed", "stopped")


class Violation(AssertionError):
    """A promise was broken."""

    def __init__(self, promise: str, what: str) -> None:
        super().__init__(f"{promise}: {what}")
        self.promise = promise


@dataclass(frozen=True, slots=True)
class Ground:
    """What the checks know of the world beside the history."""

    lanes: Mapping[str, int]  # job -> its lanes
    cpu: Mapping[str, float]  # job -> what one worker takes
    capacity: Mapping[str, float]  # node -> what it has


History = Sequence[Event]
Check = Callable[[History, Ground], None]


def _of(history: History, kind: type[T]) -> list[T]:
    return [event for event in history if isinstance(event, kind)]


def _by_job(events: Sequence[T]) -> dict[str, list[T]]:
    found: dict[str, list[T]] = defaultdict(list)
    for event in events:
        found[event.job].append(event)  # type: ignore[attr-defined]
    return found


# --- 1 ----------------------------------------------------------------------------------------


def one_leader_a_term(history: History, _ground: Ground) -> None:
    """1: a term is taken once, by one; terms only grow."""
    leaders: dict[int, str] = {}
    last = 0
    for event in _of(history, Term):
        if leaders.setdefault(event.term, event.leader) != event.leader:
            raise Violation("1", f"term {event.term}: {leaders[event.term]}, then {event.leader}")
        if event.term < last:
            raise Violation("1", f"term {event.term} after {last}")
        last = event.term


def no_older_term_has_effect(history: History, _ground: Ground) -> None:
    """1: nothing of an older term follows a newer one: decisions, commits, agents' terms."""
    for job, decisions in _by_job(_of(history, Decision)).items():
        placed = sorted({(d.page, d.index): d for d in decisions}.items())
        for (_, one), (_, other) in pairwise(placed):
            if other.term < one.term:
                why = f"{other.what} of term {other.term} follows {one.what} of term {one.term}"
                raise Violation("1", f"history of {job}: {why}")
    for job, commits in _by_job(_of(history, Commit)).items():
        for first, second in pairwise(sorted(commits, key=lambda commit: commit.written)):
            if second.term < first.term:
                steps = f"step {second.step} in term {second.term}, step {first.step} before it"
                raise Violation("1", f"{job} committed {steps} in term {first.term}")
    highest: dict[str, int] = defaultdict(int)
    for event in _of(history, Obeyed):
        if event.kind == "term":
            if event.term < highest[event.node]:
                raise Violation("1", f"{event.node} took term {event.term} after a newer one")
            highest[event.node] = event.term


# --- 2 ----------------------------------------------------------------------------------------


def commits_are_whole(history: History, _ground: Ground) -> None:
    """2: what is committed can be read back whole, and is the state of an undisturbed run."""
    for kept in _of(history, Kept):
        if kept.trouble:
            raise Violation("2", f"step {kept.step} of {kept.job}: {kept.trouble}")


def only_commits_are_restored(history: History, _ground: Ground) -> None:
    """2: a view begins from a committed checkpoint, or from the beginning."""
    commits: dict[tuple[str, int], Commit] = {
        (commit.job, commit.step): commit for commit in _of(history, Commit)
    }
    for view in _of(history, View):
        if view.restore_step and (view.job, view.restore_step) not in commits:
            at = f"view {view.number} of {view.job} begins from step {view.restore_step}"
            raise Violation("2", f"{at}, which was never committed")


# --- 3 ----------------------------------------------------------------------------------------


def committed_steps_ascend(history: History, _ground: Ground) -> None:
    """3: in the order of the plane's writes, each commit is of a later step."""
    for job, commits in _by_job(_of(history, Commit)).items():
        for one, other in pairwise(sorted(commits, key=lambda commit: commit.written)):
            if other.step <= one.step:
                raise Violation("3", f"{job} committed step {one.step}, then {other.step}")


def restores_take_the_newest_commit(history: History, _ground: Ground) -> None:
    """3: a view that begins from a checkpoint begins from the newest at that moment."""
    commits = _by_job(_of(history, Commit))
    for view in _of(history, View):
        if view.restore_step is None or not view.changed:
            continue
        before = [c.step for c in commits.get(view.job, []) if c.written < view.changed]
        newest = max(before, default=0)
        if view.restore_step != newest:
            at = f"view {view.number} of {view.job} begins from step {view.restore_step}"
            raise Violation("3", f"{at}, but step {newest} was committed")


def no_worker_goes_back(history: History, _ground: Ground) -> None:
    """3: what a worker holds only grows, and so do its views."""
    last: dict[tuple[str, int], Step] = {}
    for step in _of(history, Step):
        key = (step.job, step.worker)
        before = last.get(key)
        if before is not None and (step.step < before.step or step.view < before.view):
            had = f"step {before.step} in view {before.view}"
            raise Violation(
                "3", f"worker {step.job}.{step.worker} had {had}, then {step.step} in {step.view}"
            )
        last[key] = step


def final_is_final(history: History, _ground: Ground) -> None:
    """3: a job that has ended stays so, and numbers are never given back."""
    last: dict[str, Status] = {}
    for status in _of(history, Status):
        before = last.get(status.job)
        if before is not None:
            if before.phase in FINAL and status.phase != before.phase:
                raise Violation("3", f"{status.job} was {before.phase}, then {status.phase}")
            if status.next_worker < before.next_worker or status.attempts < before.attempts:
                raise Violation("7", f"{status.job} gives a number a second time")
        last[status.job] = status


# --- 4 ----------------------------------------------------------------------------------------


def lanes_are_held_once(history: History, ground: Ground) -> None:
    """4: in a view every lane is held exactly once; a view's number names one membership."""
    known: dict[tuple[str, int], View] = {}
    for view in _of(history, View):
        held = sorted(lane for lanes in view.lanes.values() for lane in lanes)
        if held != list(range(ground.lanes[view.job])):
            raise Violation("4", f"view {view.number} of {view.job} holds the lanes {held}")
        same = known.setdefault((view.job, view.number), view)
        if same.lanes != view.lanes or same.restore_step != view.restore_step:
            raise Violation("4", f"view {view.number} of {view.job} was written twice")
    for told in _of(history, Adopted):
        held = sorted(lane for lanes in told.lanes.values() for lane in lanes)
        if held != list(range(ground.lanes[told.job])):
            raise Violation("4", f"view {told.number} of {told.job} holds the lanes {held}")
        written = known.get((told.job, told.number))
        if written is not None and written.lanes != told.lanes:
            who = f"worker {told.worker} of {told.job}"
            raise Violation("4", f"{who} has another view {told.number} than was written")
    for job, views in _by_job(_of(history, View)).items():
        for one, other in pairwise(views):
            if other.number < one.number:
                raise Violation("4", f"view {other.number} of {job} follows view {one.number}")


def workers_agree_on_a_step(history: History, _ground: Ground) -> None:
    """5: whoever holds a step of a job holds the same state."""
    digests: dict[tuple[str, int], Step] = {}
    for step in _of(history, Step):
        if not step.digest:
            continue
        known = digests.setdefault((step.job, step.step), step)
        if known.digest != step.digest:
            pair = f"workers {known.worker} and {step.worker} of {step.job}"
            raise Violation("5", f"{pair} hold another state of step {step.step}")


# --- 5 ----------------------------------------------------------------------------------------


def answers_are_right(history: History, _ground: Ground) -> None:
    """5: every job ends well, with the answer of an undisturbed run, and its last step is
    committed."""
    answers = _of(history, Answer)
    if not answers:
        raise Violation("5", "no job came to an end")
    for answer in answers:
        if answer.phase != "succeeded":
            raise Violation("5", f"{answer.job} has {answer.phase}")
        if dict(answer.found) != dict(answer.expected):
            raise Violation("5", f"{answer.job} gave {answer.found}, not {answer.expected}")
        if answer.committed_step != answer.last_step:
            steps = f"step {answer.committed_step} of {answer.last_step}"
            raise Violation("5", f"{answer.job} has succeeded with {steps} committed")


# --- 6 ----------------------------------------------------------------------------------------


def room_is_never_promised_twice(history: History, ground: Ground) -> None:
    """6: what is placed on a node, and what runs there, is no more than it has."""
    for placed in _of(history, Placed):
        taken: dict[str, float] = defaultdict(float)
        for job, _, node in placed.placements:
            taken[node] += ground.cpu[job]
        for node, cpu in taken.items():
            if cpu > ground.capacity[node] + 1e-6:
                raise Violation(
                    "6", f"{cpu:g} cpus of {ground.capacity[node]:g} are placed on {node}"
                )
    running: dict[tuple[str, int, int, int], Process] = {}
    for process in _of(history, Process):
        key = (process.job, process.worker, process.pid, process.ticks)
        if not process.alive:
            running.pop(key, None)
            continue
        running[key] = process
        here = [other for other in running.values() if other.node == process.node]
        cpu = sum(ground.cpu[other.job] for other in here)
        if cpu > ground.capacity[process.node] + 1e-6:
            names = [f"{other.job}.{other.worker}" for other in here]
            raise Violation("6", f"{names} all run on {process.node}")


def room_is_free_only_when_the_process_is_gone(history: History, _ground: Ground) -> None:
    """6, as it says."""
    for freed in _of(history, Freed):
        if freed.alive and not freed.lost:
            who = f"{freed.job}.{freed.worker} on {freed.node}"
            raise Violation("6", f"the room of {who} is free, and its process is alive")


# --- 7 ----------------------------------------------------------------------------------------


def a_worker_runs_once(history: History, _ground: Ground) -> None:
    """7: a number is one process, on one node, ever; and is accepted by one agent once."""
    known: dict[tuple[str, int], Process] = {}
    for process in _of(history, Process):
        key = (process.job, process.worker)
        first = known.setdefault(key, process)
        same = (first.node, first.pid, first.ticks) == (process.node, process.pid, process.ticks)
        if not same:
            where = f"{first.node} (process {first.pid}) and on {process.node} ({process.pid})"
            raise Violation("7", f"worker {process.job}.{process.worker} ran on {where}")
    accepted: dict[tuple[str, int], Obeyed] = {}
    for event in _of(history, Obeyed):
        if event.kind != "accepted":
            continue
        other = accepted.setdefault((event.job, event.worker), event)
        if other is not event:
            who = f"worker {event.job}.{event.worker}"
            raise Violation("7", f"{who} was accepted by {other.node} and by {event.node}")


EVERY: tuple[Check, ...] = (
    one_leader_a_term,
    no_older_term_has_effect,
    commits_are_whole,
    only_commits_are_restored,
    committed_steps_ascend,
    restores_take_the_newest_commit,
    no_worker_goes_back,
    final_is_final,
    lanes_are_held_once,
    workers_agree_on_a_step,
    answers_are_right,
    room_is_never_promised_twice,
    room_is_free_only_when_the_process_is_gone,
    a_worker_runs_once,
)


def check(history: History, ground: Ground) -> None:
    """All of them."""
    for each in EVERY:
        each(history, ground)
