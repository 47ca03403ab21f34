"""Deliberate breakages of the agent's shell: of what it promises around its state machine."""

from __future__ import annotations

import math
from typing import Any, Final

from holdfast.agent.agent import Agent
from holdfast.agent.events import Ending, Force, ProcessExited
from holdfast.agent.journal import Journal
from holdfast.agent.supervisor import WorkerSupervisor
from holdfast.agent.uplink import Pace, Uplink
from holdfast.wire.errors import Full
from simulation.breaking import Mutant


class _Unsynced:
    """A file whose `sync` does nothing."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def sync(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _never_syncs(old: Any) -> Any:
    def append(self: Any, entries: Any) -> None:
        file = self._file
        self._file = _Unsynced(file)
        try:
            old(self, entries)
        finally:
            self._file = file

    return append


def _folder_last(old: Any) -> Any:
    """The journal knows of a worker before it has a folder."""

    async def write_down(self: Any, actions: Any) -> None:
        await old(self, [action for action in actions if not hasattr(action, "slots")])
        await old(self, [action for action in actions if hasattr(action, "slots")])

    return write_down


def _gives_up_when_full(_: Any) -> Any:
    async def on_disk(self: Any, work: Any) -> None:
        try:
            work()
        except Full:
            return

    return on_disk


def _finds_unwatched(old: Any) -> Any:
    async def find(self: Any, key: Any) -> Any:
        self._watch = lambda key, shim: None
        try:
            return await old(self, key)
        finally:
            del self._watch

    return find


def _drops_the_launch(_: Any) -> Any:
    return lambda self, key, task: self._launching.pop(key)


def _kills_nobody(old: Any) -> Any:
    return lambda self, key, force: None if force is Force.KILL else old(self, key, force)


def _killed_is_gone(old: Any) -> Any:
    def signal(self: Any, key: Any, force: Any) -> None:
        if key in self._shims:
            self._tell(ProcessExited(key, Ending()))
        old(self, key, force)

    return signal


def _keeps_its_pace(old: Any) -> Any:
    async def introduce(self: Any, *arguments: Any) -> None:
        before = self._pace
        await old(self, *arguments)
        self._pace = before

    return introduce


def _says_it_once(old: Any) -> Any:
    def wait_s(self: Any, facts: Any, now_s: float) -> float:
        waits_s: float = old(self, facts, now_s)
        return math.inf if facts == self._facts else waits_s

    return wait_s


OF_SHELL: Final = (
    Mutant(
        "journal not synced",
        "an agent acts on what it has written and not synced",
        ((Journal, "append", _never_syncs),),
    ),
    Mutant(
        "folder after the journal",
        "a worker is in the journal before it has a folder",
        ((Agent, "_write_down", _folder_last),),
    ),
    Mutant(
        "full disk passed over",
        "an agent that finds no room for its journal goes on without",
        ((Agent, "_on_disk", _gives_up_when_full),),
    ),
    Mutant(
        "adopted and not watched",
        "a restarted agent does not see the end of workers that it found",
        ((WorkerSupervisor, "find", _finds_unwatched),),
    ),
    Mutant(
        "called off in silence",
        "the end of a worker that is called off before it was started is never told",
        ((WorkerSupervisor, "_launched", _drops_the_launch),),
    ),
    Mutant(
        "nobody is killed",
        "a worker that does not leave when it is asked is asked for ever",
        ((WorkerSupervisor, "signal", _kills_nobody),),
    ),
    Mutant(
        "signalled is gone",
        "a worker is told as ended when it is signalled",
        ((WorkerSupervisor, "signal", _killed_is_gone),),
    ),
    Mutant(
        "a report is said once",
        "what was on a stream that broke is not said again on the next one",
        ((Uplink, "_introduce", _keeps_its_pace), (Pace, "wait_s", _says_it_once)),
    ),
)
