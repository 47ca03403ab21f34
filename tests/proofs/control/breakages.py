"""Histories broken on purpose: each shows that a check sees what it is for.

Each takes a history in which all is well and adds what must never happen. The short proof tries
them on a small history made by hand; every proof that has passed tries them on what it recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from tests.proofs.control import checks
from tests.proofs.control.checks import Check, Ground, History, Violation
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
Break = Callable[[History, Ground], Event]
NEVER: Final = 999_983


def _last(history: History, kind: type[T]) -> T:
    return [event for event in history if isinstance(event, kind)][-1]


def _last_commit(history: History) -> Commit:
    commits = [event for event in history if isinstance(event, Commit)]
    return max(commits, key=lambda commit: commit.written)


def _term_taken_twice(history: History, _: Ground) -> Event:
    return replace(_last(history, Term), leader="somebody else")


def _late_decision(history: History, _: Ground) -> Event:
    last = _last(history, Decision)
    return replace(last, page=NEVER, term=last.term - 1)


def _late_commit(history: History, _: Ground) -> Event:
    last = _last_commit(history)
    return replace(last, step=last.step + 1, written=last.written + 1, term=last.term - 1)


def _late_order(history: History, _: Ground) -> Event:
    terms = [e for e in history if isinstance(e, Obeyed) and e.kind == "term"]
    return replace(terms[-1], term=terms[-1].term - 1)


def _part_missing(history: History, _: Ground) -> Event:
    return replace(_last(history, Kept), trouble="a part is not there")


def _uncommitted_restored(history: History, _: Ground) -> Event:
    last = _last(history, View)
    return replace(last, number=last.number + 1, restore_step=NEVER)


def _commit_goes_back(history: History, _: Ground) -> Event:
    last = _last_commit(history)
    return replace(last, step=last.step - 1, written=last.written + 1)


def _old_commit_restored(history: History, _: Ground) -> Event:
    commit = _last_commit(history)
    views = [e for e in history if isinstance(e, View) and e.job == commit.job]
    last = max(views, key=lambda view: view.number)
    later = max(commit.written, last.changed) + 1
    return replace(last, number=last.number + 1, restore_step=0, changed=later)


def _worker_goes_back(history: History, _: Ground) -> Event:
    last = _last(history, Step)
    return replace(last, step=last.step - 1)


def _ended_job_runs(history: History, _: Ground) -> Event:
    ended = [e for e in history if isinstance(e, Status) and e.phase in checks.FINAL]
    return replace(ended[-1], phase="running")


def _number_again(history: History, _: Ground) -> Event:
    last = _last(history, Status)
    return replace(last, next_worker=last.next_worker - 1)


def _lane_twice(history: History, _: Ground) -> Event:
    last = _last(history, View)
    first = sorted(last.lanes)[0]
    lanes = {**last.lanes, first: [*last.lanes[first], last.lanes[first][0]]}
    return replace(last, number=last.number + 1, lanes=lanes)


def _lane_missing(history: History, _: Ground) -> Event:
    last = _last(history, View)
    first = sorted(last.lanes)[0]
    lanes = {**last.lanes, first: last.lanes[first][1:]}
    return replace(last, number=last.number + 1, lanes=lanes)


def _view_rewritten(history: History, _: Ground) -> Event:
    last = _last(history, View)
    return replace(last, lanes={str(NEVER): [n for held in last.lanes.values() for n in held]})


def _another_view(history: History, _: Ground) -> Event:
    last = _last(history, View)
    lanes = {str(NEVER): sorted(n for held in last.lanes.values() for n in held)}
    return Adopted(last.job, NEVER, last.number, lanes, last.restore_step)


def _two_states(history: History, _: Ground) -> Event:
    last = [e for e in history if isinstance(e, Step) and e.digest][-1]
    return replace(last, worker=NEVER, digest="another")


def _wrong_answer(history: History, _: Ground) -> Event:
    last = _last(history, Answer)
    return replace(last, found={**last.found, "wrong": 1})


def _success_without_commit(history: History, _: Ground) -> Event:
    last = _last(history, Answer)
    return replace(last, committed_step=last.last_step - 1)


def _promised_twice(history: History, ground: Ground) -> Event:
    node, capacity = sorted(ground.capacity.items())[0]
    job, cpu = sorted(ground.cpu.items())[0]
    many = int(capacity / cpu) + 1
    return Placed(0.0, [[job, NEVER + n, node] for n in range(many)])


def _too_many_processes(history: History, ground: Ground) -> Event:
    last = _last(history, Process)
    return replace(last, worker=NEVER, pid=1, job="glutton", alive=True)


def _freed_alive(history: History, _: Ground) -> Event:
    return replace(_last(history, Freed), alive=True, lost=False)


def _second_process(history: History, _: Ground) -> Event:
    last = _last(history, Process)
    return replace(last, pid=last.pid + 1, alive=False)


def _accepted_twice(history: History, _: Ground) -> Event:
    accepted = [e for e in history if isinstance(e, Obeyed) and e.kind == "accepted"]
    return replace(accepted[-1], node="elsewhere")


EVERY: Final[dict[str, tuple[Break, Check]]] = {
    "a term is taken twice": (_term_taken_twice, checks.one_leader_a_term),
    "a deposed leader decides": (_late_decision, checks.no_older_term_has_effect),
    "a deposed leader commits": (_late_commit, checks.no_older_term_has_effect),
    "an agent obeys an older term": (_late_order, checks.no_older_term_has_effect),
    "a committed part is missing": (_part_missing, checks.commits_are_whole),
    "an uncommitted state is used": (_uncommitted_restored, checks.only_commits_are_restored),
    "the committed step goes back": (_commit_goes_back, checks.committed_steps_ascend),
    "an old commit is used": (_old_commit_restored, checks.restores_take_the_newest_commit),
    "a worker goes back": (_worker_goes_back, checks.no_worker_goes_back),
    "an ended job runs again": (_ended_job_runs, checks.final_is_final),
    "a number is given back": (_number_again, checks.final_is_final),
    "a lane is held twice": (_lane_twice, checks.lanes_are_held_once),
    "a lane is missing": (_lane_missing, checks.lanes_are_held_once),
    "a view is written twice": (_view_rewritten, checks.lanes_are_held_once),
    "a worker has another view": (_another_view, checks.lanes_are_held_once),
    "two states of one step": (_two_states, checks.workers_agree_on_a_step),
    "a wrong answer": (_wrong_answer, checks.answers_are_right),
    "success without its commit": (_success_without_commit, checks.answers_are_right),
    "room is promised twice": (_promised_twice, checks.room_is_never_promised_twice),
    "too much runs on a node": (_too_many_processes, checks.room_is_never_promised_twice),
    "room is free too early": (_freed_alive, checks.room_is_free_only_when_the_process_is_gone),
    "a worker runs twice": (_second_process, checks.a_worker_runs_once),
    "two agents take a worker": (_accepted_twice, checks.a_worker_runs_once),
}


def seen(name: str, history: History, ground: Ground) -> str:
    """Break the history so; what the check says of it. Fails if it says nothing."""
    add, check = EVERY[name]
    check(history, ground)
    glutton = replace(ground, cpu={**ground.cpu, "glutton": float("inf")})
    try:
        check([*history, add(history, ground)], glutton)
    except Violation as violation:
        return str(violation)
    raise AssertionError(f"{check.__name__} did not see this: {name}")
