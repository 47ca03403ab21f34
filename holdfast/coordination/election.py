"""Electing a leader, whose term is a number that only grows.

`<path>/candidates` is a queue of contenders; its first is the leader as soon as it has taken a
term. `<path>/term` is written once for each term, so its version IS the term. Taking one is a
single transaction that checks the candidate's own node and the version: two can never take the
same, and one whose session is over takes none. The node's content names the candidate, so a winner
whose reply was lost recognises itself.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from kazoo import exceptions as kz

from holdfast.coordination.contenders import Contender, ContenderQueue, QueuePosition, own_name
from holdfast.coordination.follow import Follow
from holdfast.coordination.nodes import Op, Rejected, ReplyLost, parent_of
from holdfast.coordination.session import Session
from holdfast.coordination.transaction import Transaction
from holdfast.coordination.translate import translated
from holdfast.coordination.waits import Deadline, Wake
from holdfast.system import logs
from holdfast.system.tasks import ENDS_SOON, start_thread
from holdfast.wire.errors import Conflict, Fenced, RetryError, SessionLost
from holdfast.wire.limits import RECONNECT_DELAY_S_MAX

if TYPE_CHECKING:
    from holdfast.coordination.session import Session

_log = logs.get(__name__)


class Leader(NamedTuple):
    """Who leads, and the number of its term."""

    name: str
    term: int


class Leadership:
    """A term that was won. Ask `acting` before each deed outside the coordination plane; deeds
    inside it go through `transaction`, which a deposed leader cannot commit."""

    def __init__(
        self, session: Session, path: str, place: QueuePosition, name: str, term: int
    ) -> None:
        self._session = session
        self._term_path = f"{path}/term"
        self._place = place
        self._commits = threading.Lock()
        self._commits_done = 0
        self._lost: ReplyLost | None = None
        self._wake = threading.Event()
        self._over = threading.Event()
        self._resigned = False
        self._callbacks_lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self.holder = name
        self.term = term
        place.lease.on_end(self._wake.set)
        start_thread(self._run, f"term {term}", self._died, lasts=ENDS_SOON)

    @property
    def acting(self) -> bool:
        """Whether nobody else can be leader now: it was confirmed within the session's lease.

        Turns false by the clock alone. May turn true again after an outage, if the term survived.
        """
        return not self._over.is_set() and self._place.lease.sure

    @property
    def lost(self) -> bool:
        """Whether the term is known to be over: session lost, resigned, or removed."""
        return self._over.is_set() or self._place.lease.lost

    def wait_lost(self, timeout_s: float | None = None) -> bool:
        """Wait until the term is over; whether it is."""
        return self._over.wait(timeout_s)

    def on_lost(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, not on kazoo's thread, when the term is over; at once if it is."""
        with self._callbacks_lock:
            if not self._over.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def check(self) -> None:
        """Raise `Fenced` unless `acting`."""
        if not self.acting:
            raise self._fenced("it is over" if self.lost else "no server confirmed it in time")

    def transaction(self) -> Transaction:
        """Writes that take effect only if this term is still on."""
        return Transaction(self._commit)

    def resign(self) -> None:
        """Stop acting at once, and let the next candidate lead."""
        self._resigned = True
        self._end()
        self._place.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.resign()

    # --- private --------------------------------------------------------------------------------

    def _fenced(self, why: str) -> Fenced:
        return Fenced(
            f"{self.holder} is not the leader of term {self.term} any more",
            why=why,
            fix="campaign again",
        )

    def _commit(self, ops: Sequence[Op]) -> int:
        """The candidate's node is written with each commit: that both checks that it exists, and
        counts the commits, so that a lost reply is resolved by reading its version. Its zxid."""
        place, nodes = self._place, self._session.nodes
        with self._commits:
            deadline = nodes.deadline(None)
            if self._lost is not None:  # the last commit was given up, and may have been done
                self._commits_done += bool(
                    self._committed(self._commits_done, deadline, self._lost)
                )
                self._lost = None
            done = self._commits_done
            guard = (
                Op("check", self._term_path, version=self.term),
                Op("put", place.path, place.data, version=done),
            )
            while True:
                if self.lost:
                    raise self._fenced("it resigned" if self._resigned else "its session is over")
                try:
                    zxid = nodes.transact([*guard, *ops], deadline, place.lease)[1].mzxid
                except SessionLost as error:
                    raise self._fenced("its session is over") from error
                except ReplyLost as error:
                    self._lost = error
                    if zxid := self._committed(done, deadline, error):
                        break
                except Rejected as rejected:
                    if rejected.index < len(guard):
                        # Perhaps by ourselves: an attempt whose reply was lost.
                        if self._lost and (zxid := self._committed(done, deadline, self._lost)):
                            break
                        self._end()
                        raise self._fenced("another term began, or its node is gone") from rejected
                    self._resolve(ops[rejected.index - len(guard)], rejected)
                else:
                    break
            self._commits_done, self._lost = done + 1, None
            return int(zxid)

    def _committed(self, done: int, deadline: Deadline, error: ReplyLost) -> int:
        """The zxid of the commit whose reply was lost; 0: it did not take effect."""
        nodes, place = self._session.nodes, self._place
        if deadline.passed:
            raise nodes.gone(error)
        try:
            node = nodes.read(place.path, fresh=True, deadline=deadline, lease=place.lease)
        except SessionLost as lost:
            raise self._fenced("its session is over; the last commit may have happened") from lost
        if node is None:
            self._end()
            raise self._fenced("its node is gone; the last commit may have happened")
        return node.zxid if node.version == done + 1 else 0

    def _resolve(self, op: Op, rejected: Rejected) -> None:
        """Make what is missing above a create; anything else is the caller's conflict."""
        nodes = self._session.nodes
        if op.kind == "create" and isinstance(rejected.cause, kz.NoNodeError):
            nodes.ensure(parent_of(op.path))
            return
        raise translated(rejected.cause, f"{op.kind} {op.path}") from rejected

    def _end(self) -> None:
        with self._callbacks_lock:
            self._over.set()
        self._wake.set()

    def _died(self, error: BaseException) -> None:
        """Nobody watches our node any more, so nobody acts for this term any more."""
        self._end()
        self._session.failed(f"the watch over term {self.term}", error)

    def _run(self) -> None:
        """Watches our own node, and tells those who asked when the term is over."""
        place, nodes = self._place, self._session.nodes
        while not self._over.is_set():
            self._wake.clear()
            try:
                if not nodes.watch_end(place.path, self._wake.set, lease=place.lease):
                    break
            except SessionLost:
                break
            except RetryError as error:
                _log.debug("a term goes on", term=self.term, after=str(error))
                self._wake.wait(RECONNECT_DELAY_S_MAX)
                continue
            if not self._over.is_set():
                self._wake.wait()
        self._end()
        place.lease.forget(self._wake.set)
        self._session.forget(self._wake.set)
        with self._callbacks_lock:
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback()
            except Exception:  # somebody's own code: the others are told all the same
                _log.exception("a callback for the end of a term failed", term=self.term)


class Election:
    """The election under `path`; `name` is what others see of this candidate."""

    def __init__(self, session: Session, path: str, name: str | None = None) -> None:
        self._session = session
        self._path = path
        self._term_path = f"{path}/term"
        self._contenders = ContenderQueue(
            session, f"{path}/candidates", f"the leadership of {path}"
        )
        self._leaderships: dict[int, Leadership] = {}
        self.name = name or own_name()

    def campaign(self, timeout_s: float | None = None) -> Leadership:
        """Wait until we are the leader. A candidate that gives up leaves nothing behind."""
        deadline = Deadline(timeout_s)
        place = self._contenders.enter("c", self.name, lambda kind: True, timeout_s)
        try:
            term = self._take_term(place, deadline)
        except BaseException:
            place.leave()
            raise
        leadership = Leadership(self._session, self._path, place, self.name, term)
        self._leaderships = {
            known: old for known, old in self._leaderships.items() if not old.lost
        } | {term: leadership}
        return leadership

    def cancel(self) -> None:
        """A campaign that waits now raises `Cancelled`."""
        self._contenders.cancel()

    def as_leader(self, term: int) -> Transaction:
        """A transaction of the term that was won through this object, or `Fenced`."""
        leadership = self._leaderships.get(term)
        if leadership is None or leadership.lost:
            raise Fenced(
                f"term {term} is not ours, or not any more", fix="campaign, and use its term"
            )
        return leadership.transaction()

    def current_leader(self) -> Leader | None:
        """Who leads now, as the ensemble knows it; None between two terms."""
        return self._leader(None)

    def candidates(self) -> list[Contender]:
        """The leader and those who wait, in the order in which they will lead."""
        return self._contenders.contenders()

    def watch(self, callback: Callable[[Leader | None], None]) -> Follow[Leader | None]:
        """Call `callback(leader)` now and after each change, on a thread of its own."""
        return Follow(self._session, f"the leader of {self._path}", self._leader, callback)

    # --- private --------------------------------------------------------------------------------

    def _leader(self, wake: Wake | None) -> Leader | None:
        nodes = self._session.nodes
        node = nodes.read(self._term_path, wake, fresh=True)
        if node is None or not node.data:
            return None
        record = json.loads(node.data)
        candidate = f"{self._path}/candidates/{record['candidate']}"
        there = (
            nodes.read(candidate) is not None if wake is None else nodes.watch_end(candidate, wake)
        )
        return Leader(record["name"], node.version) if there else None

    def _take_term(self, place: QueuePosition, deadline: Deadline) -> int:
        nodes = self._session.nodes
        data = json.dumps({"candidate": place.node, "name": self.name}).encode()
        while True:
            try:
                node = nodes.read(self._term_path, fresh=True, lease=place.lease)
                if node is None:
                    nodes.create(self._term_path, b"")
                    continue
                if node.data == data:
                    return node.version
                ops = [
                    Op("check", place.path),
                    Op("put", self._term_path, data, version=node.version),
                ]
                nodes.transact(ops, nodes.deadline(None), place.lease)
            except Conflict:
                continue  # somebody else made the node of the terms just now
            except ReplyLost:
                continue  # the next read tells whether it was done
            except Rejected as rejected:
                if rejected.index == 0:
                    raise Fenced(
                        f"{self.name} lost its candidacy for {self._path} before it could lead",
                        why="its node is gone",
                        fix="campaign again",
                    ) from rejected
            except RetryError:
                if deadline.passed:
                    raise
                time.sleep(RECONNECT_DELAY_S_MAX)
            else:
                return node.version + 1


# --- election loop --------------------------------------------------------------------------------
# An election loop, for as long as a process lives: campaign, lead, and campaign again.
#
# loop = ElectionLoop(session, Election(session, "/lead", name), wake)
# loop.run(stop, lead)      # `lead(leadership)` returns when its term is over, or `stop` is set


# A candidate whose campaign failed stands again after this.
CAMPAIGN_AGAIN_S: Final = 0.2

Lead = Callable[[Leadership], None]


class ElectionLoop:
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
