"""Courses and their history, written together, fenced by the leader's term."""

from __future__ import annotations

from dataclasses import replace

from holdfast.control.store import history
from holdfast.control.store.codec import Entry
from holdfast.control.store.history import Ring
from holdfast.coordination import Facts, Leadership, Session, Transaction
from holdfast.serve.conduct import SetCourse
from holdfast.serve.guard import new_secret
from holdfast.serve.records import Service, course_path, history_path, service_path
from holdfast.wire.clock import Clock
from holdfast.wire.documents import from_bytes, to_bytes
from holdfast.wire.errors import HoldfastError
from holdfast.wire.limits import REASON_CHARACTERS_MAX


class Writer:
    """What a leader writes in its term. For one thread."""

    def __init__(self, session: Session, leadership: Leadership) -> None:
        self._facts = Facts(session)
        self._clock: Clock = session.clock
        self._leadership = leadership
        self._rings: dict[str, Ring] = {}

    def set_course(self, command: SetCourse, reason: str, version: int) -> None:
        """Write the course upon this version of its node (-1: there is none), with its reason.

        `Conflict`, `Fenced`, `Missing` (the service was removed): nothing was written.
        `Unavailable`: nobody knows.
        """
        path, data = course_path(command.service), to_bytes(command.course)
        transaction = self._leadership.transaction()
        # Without this, the course of a service that was just removed would bring half of it back.
        transaction.check(service_path(command.service))
        if version < 0:
            transaction.create(path, data)
        else:
            transaction.replace(path, data, version)
        self._commit(transaction, command.service, command.course.stage.value.title(), reason)

    def secure(self, service: str) -> None:
        """Give a service of an earlier version the secret that replicas ask for. Twice is once."""
        path = service_path(service)
        fact = self._facts.read(path, fresh=True)
        before = from_bytes(path, Service, fact.data) if fact is not None and fact.data else None
        if fact is None or before is None or before.secret:
            return
        transaction = self._leadership.transaction()
        transaction.replace(path, to_bytes(replace(before, secret=new_secret())), fact.version)
        transaction.commit()

    def note(self, service: str, what: str, reason: str) -> None:
        """A line in the history, without a course."""
        transaction = self._leadership.transaction()
        transaction.check(service_path(service))
        self._commit(transaction, service, what, reason)

    def _commit(self, transaction: Transaction, service: str, what: str, reason: str) -> None:
        """With a line in the history."""
        now_s, term = self._clock.wall_ms() / 1000, self._leadership.term
        entry = Entry(now_s, term, what, reason[-REASON_CHARACTERS_MAX:])
        try:
            ring = history.add(transaction, service, self._ring(service), [entry], history_path)
            transaction.commit()
        except HoldfastError:
            self.forget(service)
            raise
        self._rings[service] = ring

    def forget(self, service: str) -> None:
        """Its history is read again before it is written."""
        self._rings.pop(service, None)

    def _ring(self, service: str) -> Ring:
        if service not in self._rings:
            self._rings[service] = history.read_ring(self._facts, service, history_path)
        return self._rings[service]
