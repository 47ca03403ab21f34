"""The conductor's life: it stands for election, and while it leads it looks, decides and writes.

Every course is written in a transaction that is fenced by the term: a deposed conductor changes
nothing. Levels: a watch only wakes it, and it decides from what is there. A user's rollback goes
through without any pause: watch, look, decide, write.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

from holdfast.control.store.plane import ControlPlane
from holdfast.coordination import Election, Leadership, Session, Standing
from holdfast.serve.conduct import Decision, Observed, ScaleJob, SetCourse
from holdfast.serve.conductor.burying import Burying
from holdfast.serve.conductor.memory import Memory
from holdfast.serve.conductor.polling import Poller, pauses_s
from holdfast.serve.conductor.sight import Seen, Sight
from holdfast.serve.conductor.writing import Writer
from holdfast.serve.records import CONDUCTOR, job_name
from holdfast.serve.rollout import advance
from holdfast.wire import logs
from holdfast.wire.errors import Conflict, Fenced, HoldfastError, Missing, RetryError, SessionLost
from holdfast.wire.limits import CONDUCTOR_LOOK_S, CONDUCTOR_LOOK_S_MAX, TROUBLE_S

_log = logs.get(__name__)


class Conductor:
    """A candidate, and at times the leader. `tell`: called with the term that it leads, 0: none."""

    def __init__(
        self, session: Session, name: str | None = None, tell: Callable[[int], None] | None = None
    ) -> None:
        self._session = session
        self._tell = tell or (lambda term: None)
        self._bell = threading.Event()
        self._standing = Standing(session, Election(session, CONDUCTOR, name), self._bell.set)

    def run(self, stop: threading.Event) -> None:
        """Stand, lead, and stand again, until `stop` is set. Then the next one may lead at once."""

        def lead(leadership: Leadership) -> None:
            self._tell(leadership.term)
            try:
                self._lead(leadership, stop)
            finally:
                self._tell(0)

        self._standing.run(stop, lead)

    def _lead(self, leadership: Leadership, stop: threading.Event) -> None:
        sight = Sight(self._session, self._bell.set)
        poller = Poller(self._bell.set, self._session.clock)
        with closing(sight), closing(poller):
            term = Term(self._session, leadership, sight, poller)
            fresh = False
            while not stop.is_set() and not leadership.lost:
                self._bell.clear()
                if not leadership.acting:
                    self._bell.wait(CONDUCTOR_LOOK_S)
                    continue
                try:
                    if not fresh:
                        sight.read()
                        fresh = True
                    pause_s = term.tick()
                except (Fenced, SessionLost):
                    raise
                except RetryError as error:
                    _log.warning("the coordination plane does not answer", error=str(error))
                    stop.wait(CONDUCTOR_LOOK_S)
                    continue
                except HoldfastError as error:
                    _log.error("nothing can be decided for now", error=str(error))
                    stop.wait(TROUBLE_S)
                    fresh = False
                    continue
                self._bell.wait(pause_s)


class Term:
    """What a leader does in its term. For one thread."""

    def __init__(
        self, session: Session, leadership: Leadership, sight: Sight, poller: Poller
    ) -> None:
        self._clock = session.clock
        self._leadership = leadership
        self._sight = sight
        self._poller = poller
        self._writer = Writer(session, leadership)
        self._burying = Burying(session)
        self._plane = ControlPlane(session, "the conductor")
        self._memories: dict[str, Memory] = {}
        self._troubled: dict[str, tuple[float, str]] = {}  # service -> until when, and what
        self._unscaled: dict[str, tuple[float, str]] = {}  # the same, of its job

    def tick(self) -> float:
        """Look, decide and write once; how long it may wait for the next time.

        `Fenced` and `SessionLost`: the term is over. `RetryError`: the plane did not answer.
        """
        sight = self._sight
        sight.refresh()
        for gone in self._memories.keys() - sight.services.keys():
            del self._memories[gone]
            self._poller.forget(gone)
            self._writer.forget(gone)
            self._burying.forget(gone)
            self._troubled.pop(gone, None)
            self._unscaled.pop(gone, None)
        self._take_stats()
        pause_s = CONDUCTOR_LOOK_S_MAX
        for name in sorted(sight.services):
            pause_s = min(pause_s, self._conduct(name))
        return pause_s

    def _now_s(self) -> float:
        return self._clock.wall_ms() / 1000

    def _take_stats(self) -> None:
        for done in self._poller.collect():
            memory = self._memories.get(done.service)
            if memory is not None:
                memory.see_stats(done.answers, done.asked, done.arms, self._now_s())

    def _conduct(self, name: str) -> float:
        """One service; in how many seconds it has to be looked at again."""
        seen = self._sight.services[name]
        until_s, _ = self._troubled.get(name, (0.0, ""))
        if self._clock.now_s() < until_s:
            return CONDUCTOR_LOOK_S_MAX
        try:
            self._burying.look(name, seen)
            if not seen.desired.service.secret:
                self._writer.secure(name)
            if self._carry_out(advance(seen.desired, self._observed(name, seen), self._now_s())):
                return 0.0
        except (Conflict, Missing) as error:
            _log.info("decided upon an old snapshot; looking again", service=name, why=error.what)
            self._sight.doubt(name)
            return CONDUCTOR_LOOK_S
        except (Fenced, SessionLost):
            raise
        except RetryError:
            self._sight.doubt(name)
            raise
        except HoldfastError as error:
            self._sight.doubt(name)
            self._trouble(name, error)
            return CONDUCTOR_LOOK_S_MAX
        return self._poll(name, seen)

    def _observed(self, name: str, seen: Seen) -> Observed:
        memory = self._memories.setdefault(name, Memory())
        gateways = dict(self._sight.gateways)
        now = Observed(seen.course, seen.replicas, gateways, job_replicas=seen.job_replicas)
        return memory.look(name, now, seen.failures, self._now_s())

    def _poll(self, name: str, seen: Seen) -> float:
        """Ask its replicas for their counts, if they matter now; when to look again."""
        course = seen.course
        every_s, look_s = pauses_s(course, seen.desired.service)
        if course is not None and every_s is not None:
            secret = seen.desired.service.secret
            self._poller.ask(name, seen.replicas, course.arms, every_s, secret)
        return look_s

    # --- writing ------------------------------------------------------------------------------

    def _carry_out(self, decisions: list[Decision]) -> bool:
        """Whether anything was done, so that there is something new to see."""
        done = False
        for decision in decisions:
            if isinstance(decision.command, SetCourse):
                self._set_course(decision.command, decision.reason)
                done = True
            else:
                done = self._scale(decision.command, decision.reason) or done
        return done

    def _set_course(self, command: SetCourse, reason: str) -> None:
        seen = self._sight.services[command.service]
        self._writer.set_course(command, reason, seen.course_version)
        self._sight.wrote(command.service, command.course)
        course = command.course
        _log.info(
            "course",
            term=self._leadership.term,
            service=command.service,
            number=course.number,
            stage=course.stage.value,
            arms={arm.version: arm.weight for arm in course.arms},
            hold=list(course.hold),
            reason=reason,
        )

    def _scale(self, command: ScaleJob, reason: str) -> bool:
        """Whether it was done. A job that cannot be scaled does not hold up the rollout."""
        name = command.service
        until_s, known = self._unscaled.get(name, (0.0, ""))
        # It is no write of ours, so nothing fences it but this.
        if self._clock.now_s() < until_s or not self._leadership.acting:
            return False
        try:
            self._plane.scale(job_name(name), command.replicas)
        except (Fenced, SessionLost, RetryError):
            raise
        except HoldfastError as error:
            self._unscaled[name] = (self._clock.now_s() + TROUBLE_S, str(error))
            if str(error) != known:
                _log.error("the job cannot be scaled", service=name, error=str(error))
                self._writer.note(name, "Trouble", str(error))
            return False
        self._unscaled.pop(name, None)
        self._sight.rescaled(name, command.replicas)
        self._writer.note(name, "Scale", reason)
        _log.info("scale", service=name, replicas=command.replicas, reason=reason)
        return True

    def _trouble(self, name: str, error: HoldfastError) -> None:
        """A service's own trouble does not hold up the others. It is told once, and tried again."""
        _, known = self._troubled.get(name, (0.0, ""))
        self._troubled[name] = (self._clock.now_s() + TROUBLE_S, str(error))
        if str(error) != known:
            _log.error("a decision cannot be carried out", service=name, error=str(error))
