"""Standing for election for as long as a process lives: campaign, lead, and stand again.

standing = Standing(session, Election(session, "/lead", name), wake)
standing.run(stop, lead)      # `lead(leadership)` returns when its term is over, or `stop` is set
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from holdfast.coordination.election import Election, Leadership
from holdfast.coordination.session import Session
from holdfast.wire import logs
from holdfast.wire.errors import Fenced, RetryError, SessionLost
from holdfast.wire.tasks import start_thread

# A candidate whose campaign failed stands again after this.
CAMPAIGN_AGAIN_S: Final = 0.2

_log = logs.get(__name__)

Lead = Callable[[Leadership], None]


class Standing:
    """A candidate, and at times the leader. `wake` ends whatever the leader waits for; it may be
    called at any time, by any thread."""

    def __init__(self, session: Session, election: Election, wake: Callable[[], None]) -> None:
        self._session = session
        self._election = election
        self._wake = wake
        self._ended = threading.Event()

    def run(self, stop: threading.Event, lead: Lead) -> None:
        """Stand, lead, and stand again, until `stop` is set. Then the next one may lead at once.

        Raises what a new campaign cannot mend: the session was closed, or a bug of ours.
        """
        self._ended.clear()
        caller = start_thread(partial(self._call_off, stop), "stop")
        try:
            while not stop.is_set():
                self._stand(stop, lead)
        finally:
            self._ended.set()
            caller.join()

    def _call_off(self, stop: threading.Event) -> None:
        """Ends waits when `stop` is set; again and again, since one may begin just then."""
        while not self._ended.is_set():
            if stop.wait(CAMPAIGN_AGAIN_S):
                self._election.cancel()
                self._wake()
                self._ended.wait(CAMPAIGN_AGAIN_S)

    def _stand(self, stop: threading.Event, lead: Lead) -> None:
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
            leadership.on_lost(self._wake)
            try:
                lead(leadership)
            except (Fenced, SessionLost) as error:
                if self._session.over:
                    raise
                _log.warning("does not lead any more", term=leadership.term, why=error.why)
            except RetryError as error:
                # It could not even begin: let another one try, and stand again.
                _log.warning("could not begin to lead", term=leadership.term, error=str(error))
                stop.wait(CAMPAIGN_AGAIN_S)
            else:
                if leadership.lost:
                    _log.warning("does not lead any more", term=leadership.term)
                else:
                    _log.info("steps down", term=leadership.term)
