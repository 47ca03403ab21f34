"""The coordinator: stands for election, and while it leads compares what is wanted with what is
seen. Any number of them run; one leads.

A leader sends an order only while nobody else can be leader (`Leadership.acting`, which turns
false by the clock before the session can end), and every record is fenced by its term. Cut off
from the coordination plane it pauses; it steps down when its term is over, and stands again.
"""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Final

from holdfast.control.rpc.port import Agents
from holdfast.control.shell.leading import LeaderTerm
from holdfast.control.shell.store_watch import StoreWatch
from holdfast.control.shell.topic_watch import TopicWatch
from holdfast.control.store import layout
from holdfast.control.store.ledger import Ledger
from holdfast.control.store.manifests import ManifestWriter, WriteManifest
from holdfast.coordination import Election, ElectionLoop, Leadership, Session
from holdfast.system import logs
from holdfast.wire.errors import Fenced, HoldfastError, RetryError, SessionLost
from holdfast.wire.limits import TICK_GAP_S_MAX, TROUBLE_S

# A leader that nothing wakes looks so soon, for what time alone brings; then ever more rarely.
LOOK_S: Final = 0.1
LOOK_S_MAX: Final = 2.0

_log = logs.get(__name__)


class Coordinator:
    """A candidate, and at times the leader. `name` is what agents and people see of it."""

    def __init__(
        self,
        session: Session,
        agents: Agents,
        write_manifest: WriteManifest,
        name: str | None = None,
        store: StoreWatch | None = None,
        topics: TopicWatch | None = None,
    ) -> None:
        self._topics = topics
        self._session = session
        self._clock = session.clock
        self._agents = agents
        self._write_manifest = write_manifest
        self._store = store
        self._election_loop = ElectionLoop(
            session, Election(session, layout.LEADER, name), agents.wake
        )
        self._leadership: Leadership | None = None

    @property
    def acting(self) -> bool:
        """Whether this one leads, and nobody else can."""
        leadership = self._leadership
        return leadership is not None and leadership.acting

    @property
    def term(self) -> int:
        """The term in which this one leads; 0: it does not."""
        leadership = self._leadership
        return leadership.term if leadership is not None and not leadership.lost else 0

    def run(self, stop: threading.Event) -> None:
        """Stand, lead, and stand again, until `stop` is set. Then the next one may lead at once.

        Raises what a new campaign cannot mend: the session was closed, or a bug of ours.
        """
        self._election_loop.run(stop, lambda leadership: self._lead(leadership, stop))

    def _lead(self, leadership: Leadership, stop: threading.Event) -> None:
        self._agents.begin(leadership.term)
        if self._topics is not None:
            self._topics.begin(leadership.term)
        manifests = ManifestWriter(self._write_manifest, self._agents.wake)
        ledger = Ledger(self._session, leadership, self._agents.wake)
        watches = (self._store, self._topics)
        term = LeaderTerm(leadership, ledger, self._agents, manifests, self._clock, *watches)
        self._leadership = leadership
        try:
            with closing(manifests), closing(ledger):
                self._loop(leadership, ledger, term, stop)
        finally:
            self._leadership = None
            self._agents.end()

    def _loop(
        self, leadership: Leadership, ledger: Ledger, term: LeaderTerm, stop: threading.Event
    ) -> None:
        fresh, idle_s = False, LOOK_S
        while not stop.is_set() and not leadership.lost:
            if not leadership.acting:
                self._agents.wait(LOOK_S)
                continue
            began_s = self._clock.now_s()
            try:
                if not fresh:
                    ledger.read()
                    fresh = True
                again = term.tick()
            except RetryError as error:
                _log.warning("the coordination plane does not answer", error=str(error))
                stop.wait(LOOK_S)
                continue
            except (Fenced, SessionLost):
                raise
            except HoldfastError as error:
                _log.error("nothing can be decided for now", error=str(error))
                stop.wait(TROUBLE_S)
                fresh = False
                continue
            if again:
                idle_s = LOOK_S
                continue
            took_s = self._clock.now_s() - began_s
            stop.wait(min(took_s, TICK_GAP_S_MAX))
            woken = self._agents.wait(idle_s)
            idle_s = LOOK_S if woken else min(2 * idle_s, LOOK_S_MAX)
