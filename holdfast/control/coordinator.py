"""The coordinator: stands for election, and while it leads compares what is wanted with what is
seen. Any number of them run; one leads.

A leader sends an order only while nobody else can be leader (`Leadership.acting`, which turns
false by the clock before the session can end), and every record is fenced by its term. Cut off
from the coordination plane it pauses; it steps down when its term is over, and stands again.
"""

from __future__ import annotations

import threading
from contextlib import closing

from holdfast.control import filing
from holdfast.control.agents_port import Agents
from holdfast.control.leading import Term
from holdfast.control.ledger import Ledger
from holdfast.control.manifests import ManifestWriter, WriteManifest
from holdfast.coordination import Election, Leadership, Session
from holdfast.wire import logs
from holdfast.wire.errors import Fenced, HoldfastError, RetryError, SessionLost
from holdfast.wire.limits import (
    CAMPAIGN_AGAIN_S,
    LOOK_S,
    LOOK_S_MAX,
    TICK_GAP_S_MAX,
    TROUBLE_S,
)

_log = logs.get(__name__)


class Coordinator:
    """A candidate, and at times the leader. `name` is what agents and people see of it."""

    def __init__(
        self,
        session: Session,
        agents: Agents,
        write_manifest: WriteManifest,
        name: str | None = None,
    ) -> None:
        self._session = session
        self._clock = session.clock
        self._agents = agents
        self._write_manifest = write_manifest
        self._election = Election(session, filing.LEADER, name)
        self._ended = threading.Event()
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
        self._ended.clear()
        caller = threading.Thread(target=self._call_off, args=(stop,), name="stop", daemon=True)
        caller.start()
        try:
            while not stop.is_set():
                self._stand(stop)
        finally:
            self._ended.set()
            caller.join()

    def _call_off(self, stop: threading.Event) -> None:
        """Ends waits when `stop` is set; again and again, since one may begin just then."""
        while not self._ended.is_set():
            if stop.wait(CAMPAIGN_AGAIN_S):
                self._election.cancel()
                self._agents.wake()
                self._ended.wait(CAMPAIGN_AGAIN_S)

    def _stand(self, stop: threading.Event) -> None:
        try:
            leadership = self._election.campaign()
        except (RetryError, Fenced, SessionLost) as error:
            if self._session.over:
                raise
            _log.debug("the campaign goes on", after=str(error))
            stop.wait(CAMPAIGN_AGAIN_S)
            return
        with leadership:
            _log.info("leads", term=leadership.term, name=self._election.name)
            try:
                self._lead(leadership, stop)
            except (Fenced, SessionLost) as error:
                if self._session.over:
                    raise
                _log.warning("does not lead any more", term=leadership.term, why=error.why)
            except RetryError as error:
                # It could not even begin: let another one try, and stand again.
                _log.warning("could not begin to lead", term=leadership.term, error=str(error))
                stop.wait(CAMPAIGN_AGAIN_S)
            else:
                _log.info("steps down", term=leadership.term)

    def _lead(self, leadership: Leadership, stop: threading.Event) -> None:
        self._agents.begin(leadership.term)
        leadership.on_lost(self._agents.wake)
        manifests = ManifestWriter(self._write_manifest, self._agents.wake)
        ledger = Ledger(self._session, leadership, self._agents.wake)
        term = Term(leadership, ledger, self._agents, manifests, self._clock)
        self._leadership = leadership
        try:
            with closing(manifests), closing(ledger):
                self._loop(leadership, ledger, term, stop)
        finally:
            self._leadership = None
            self._agents.end()

    def _loop(
        self, leadership: Leadership, ledger: Ledger, term: Term, stop: threading.Event
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
