"""What the workers of an agent hold and follow in the plane, for which they have no credentials.

A worker says all that it wants (`wire.sharing`); the agent gets it with its own session, within the
queue that the worker's order names, and tells what became of it. What it promises:

- What a worker holds is given back when the worker does not want it any more, or has ended. A line
  that is merely broken gives nothing back: the worker goes on, and comes back.
- A worker that holds something is told, again and again, until when that is certain. An agent that
  is paused or killed does not, so the worker knows by the clock when to stop believing.
- What was held in a session that has ended is lost, and the worker is told. So is whoever believes
  to hold something that this agent never got for it: the agent before it did, in another session.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from holdfast.agent.events import Key
from holdfast.coordination import ABSENT, AcquiredLock, Follow, Session, Versioned, shared
from holdfast.system import logs
from holdfast.system.clock import Clock, SystemClock
from holdfast.system.tasks import ends_process, in_loop, owned
from holdfast.wire import sharing
from holdfast.wire.errors import (
    Cancelled,
    Fenced,
    Full,
    HoldfastError,
    SessionLost,
    TimedOut,
    Unavailable,
    Usage,
)
from holdfast.wire.limits import (
    KEEPER_FRACTION,
    RECONNECT_DELAY_S_MAX,
    SESSION_TIMEOUT_S,
    SHARED_CONFIGS_MAX,
    SHARED_HELD_MAX,
    SHARED_WAITS_MAX,
)
from holdfast.wire.sharing import HELD, LOST, REFUSED, WAITING, SharedValue, Want, WantState

# What all workers of an agent wait for at once: each is a thread of the agent.
SHARED_AGENT_WAITS_MAX: Final = 256
# Threads of an agent that give back what is not held any more.
SHARED_RELEASES: Final = 4
# Values that one worker follows, and that all workers of an agent follow: each of the latter is a
# thread of the agent and a watch in the plane.
SHARED_AGENT_CONFIGS_MAX: Final = 64

log = logs.get(__name__)

_ANOTHER_AGENT: Final = SessionLost(
    "the agent was started anew, and what it held before is lost",
    why="it was held in the session of the agent before this one",
    fix="acquire it again; let what it protects refuse smaller tokens",
)


class _Request:
    """A want that is being served. `status` is what its worker is told."""

    def __init__(self, key: Key, queue: str, want: Want) -> None:
        self.key = key
        self.queue = queue
        self.want = want
        self.held: AcquiredLock | None = None
        self.status = WantState(WAITING)
        self.asked = False  # a thread sees to it
        self.over = threading.Event()  # nobody wants it any more
        self.call_off: Callable[[], None] = lambda: None


class _SharingWorker:
    """What one worker wants."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.serial = 0
        self.requests: dict[int, _Request] = {}
        self.follows: set[str] = set()

    @property
    def holds(self) -> bool:
        return any(one.held is not None for one in self.requests.values())


class Coordination:
    """Runs in the agent's loop. `tell` sends a line to a worker, if it is connected."""

    def __init__(
        self, node: str, tell: Callable[[Key, bytes], None], clock: Clock | None = None
    ) -> None:
        self._node = node
        self._tell = tell
        self._clock = clock or SystemClock()
        self._loop = asyncio.get_running_loop()
        self._session: Session | None = None
        self._workers: dict[Key, _SharingWorker] = {}
        self._waits = 0
        self._values: dict[tuple[str, str], SharedValue] = {}
        self._follows: dict[tuple[str, str], Follow[Versioned]] = {}
        self._closed = False
        self._asking = ThreadPoolExecutor(SHARED_AGENT_WAITS_MAX, "holdfast-shared")
        self._tidying = ThreadPoolExecutor(SHARED_RELEASES, "holdfast-release")

    def attach(self, session: Session) -> None:
        """This is the agent's session: what waits for one is seen to."""
        self._session = session
        for key, worker in self._workers.items():
            for request in worker.requests.values():
                self._see_to(request)
            for name in sorted(worker.follows):
                self._take_up(worker, key, name)
            self._say(key)

    async def run(self) -> None:
        """Until it is cancelled: tell whoever holds something until when that is certain."""
        while True:
            session = self._session
            timeout_s = SESSION_TIMEOUT_S if session is None else session.timeout_s
            await asyncio.sleep(KEEPER_FRACTION * timeout_s)
            for key, worker in self._workers.items():
                if worker.holds:
                    self._say(key)

    async def close(self) -> None:
        """Stop. What is held stays held for as long as the session lives: workers go on, and would
        not know. Those that wait are called off, and wait again with the next agent."""
        self._closed = True
        for worker in self._workers.values():
            for request in worker.requests.values():
                request.over.set()
                request.call_off()
        follows, self._follows = list(self._follows.values()), {}
        await asyncio.to_thread(self._end, follows)

    def _end(self, follows: Iterable[Follow[Versioned]]) -> None:
        for follow in follows:
            follow.close()
        self._asking.shutdown()
        self._tidying.shutdown()

    # --- what workers say -------------------------------------------------------------------------

    def receive(self, key: Key, queue: str, body: Any) -> None:
        """All that this worker wants now. Raises what `sharing.wants_from` raises."""
        wanted = sharing.wants_from(body)
        worker = self._workers.setdefault(key, _SharingWorker(queue))
        if wanted.serial <= worker.serial:
            return  # of a former connection, read late
        worker.serial = wanted.serial
        for number in worker.requests.keys() - {want.id for want in wanted.wants}:
            self._give_back(worker.requests.pop(number))
        for want in wanted.wants:
            if want.id not in worker.requests:
                request = worker.requests[want.id] = _Request(key, queue, want)
                self._begin(worker, request)
        self._say(key)
        gone = worker.follows - set(wanted.follows)
        worker.follows -= gone
        self._unfollow({(queue, name) for name in gone})
        for name in wanted.follows:
            self._take_up(worker, key, name)

    def ended(self, key: Key) -> None:
        """The worker has ended: what it held is free, for others."""
        worker = self._workers.pop(key, None)
        if worker is None:
            return
        for request in worker.requests.values():
            self._give_back(request)
        self._unfollow({(worker.queue, name) for name in worker.follows})

    def _begin(self, worker: _SharingWorker, request: _Request) -> None:
        others = [one for one in worker.requests.values() if one is not request]
        waiting = sum(1 for one in others if one.status.state == WAITING)
        if request.want.token is not None:
            request.status = WantState(LOST, error=_ANOTHER_AGENT)
        elif not worker.queue:
            request.status = WantState(REFUSED, error=_no_queue())
        elif len(others) >= SHARED_HELD_MAX + SHARED_WAITS_MAX or waiting >= SHARED_WAITS_MAX:
            request.status = WantState(REFUSED, error=_too_many(request.key))
        else:
            self._see_to(request)

    # --- holding ----------------------------------------------------------------------------------

    def _see_to(self, request: _Request) -> None:
        """Get it, in a thread of its own, once there is a session."""
        session = self._session
        if session is None or request.asked or request.status.state != WAITING or self._closed:
            return
        if self._waits >= SHARED_AGENT_WAITS_MAX:
            request.status = WantState(REFUSED, error=_full(self._node))
            return
        request.asked = True
        want, holder = request.want, f"{request.key}@{self._node}"
        recipe = shared.recipe(session, request.queue, want, holder)
        request.call_off = recipe.close
        self._waits += 1
        asked = self._asking.submit(self._acquire, session, recipe, request)
        owned(asked, ends_process("getting what workers share"))

    def _acquire(self, session: Session, recipe: shared.Recipe, request: _Request) -> None:
        """In a thread: wait until it is held, through outages and lost sessions."""
        held, error = None, None
        try:
            held = self._wait(session, recipe, request)
        except HoldfastError as refused:
            error = refused
        except BaseException as bug:
            error = Unavailable(f"the agent failed: {bug!r}", fix="look into the agent's log")
            log.exception("a request of a worker failed", worker=str(request.key))
        self._call(self._settled, request, held, error)

    def _wait(self, session: Session, recipe: shared.Recipe, request: _Request) -> AcquiredLock:
        until_s = request.want.until_s
        while True:
            left_s = None if until_s is None else max(0.0, until_s - self._clock.now_s())
            try:
                return recipe.acquire(left_s)
            except (TimedOut, Cancelled):
                raise
            except (Unavailable, SessionLost, Fenced):
                # The plane is away, or our place in the line went with a session: stand again.
                passed = until_s is not None and self._clock.now_s() >= until_s
                if passed or session.over or request.over.wait(RECONNECT_DELAY_S_MAX):
                    raise

    def _settled(
        self, request: _Request, held: AcquiredLock | None, error: HoldfastError | None
    ) -> None:
        self._waits -= 1
        if held is None:
            request.status = WantState(REFUSED, error=error)
        elif request.over.is_set() and not self._closed:
            request.held = held
            self._give_back(request)
            return
        else:
            request.held = held
            request.status = self._status_of(held)
            held.on_lost(lambda: self._call(self._lost, request))
        self._say(request.key)

    def _status_of(self, held: AcquiredLock) -> WantState:
        return WantState(HELD, held.token, held.sure_until_s, held.over_at_s)

    def _lost(self, request: _Request) -> None:
        """The session in which it was held is over."""
        if request.held is None:
            return
        what = f"the {request.want.kind} {request.want.name!r} is lost"
        log.warning("a worker has lost what it held", worker=str(request.key), what=what)
        request.held = None
        request.status = WantState(
            LOST,
            error=SessionLost(
                what,
                why="the agent's session with the coordination plane has ended",
                fix="acquire it again; let what it protects refuse smaller tokens",
            ),
        )
        self._say(request.key)

    def _give_back(self, request: _Request) -> None:
        request.over.set()
        request.call_off()
        held, request.held = request.held, None
        session = self._session
        if held is not None and session is not None and not self._closed:
            path = shared.recipe(session, request.queue, request.want, "").path
            given = self._tidying.submit(_release, held, session, path)
            owned(given, ends_process("giving back what workers share"))

    # --- values -----------------------------------------------------------------------------------

    def _take_up(self, worker: _SharingWorker, key: Key, name: str) -> None:
        """Follow the value for this worker, and tell what is known of it."""
        new = name not in worker.follows
        if new and (not worker.queue or len(worker.follows) >= SHARED_CONFIGS_MAX):
            error = _too_many(key) if worker.queue else _no_queue()
            self._tell(key, sharing.value_line(SharedValue(name, None, ABSENT, error)))
            return
        worker.follows.add(name)
        if self._follow(worker.queue, name):
            self._say_value(key, (worker.queue, name))
        else:
            error = _full(self._node)
            self._tell(key, sharing.value_line(SharedValue(name, None, ABSENT, error)))

    def _follow(self, queue: str, name: str) -> bool:
        """Follow it, once there is a session; False: that are too many."""
        at, session = (queue, name), self._session
        if session is None or at in self._follows or self._closed:
            return True
        if len(self._follows) >= SHARED_AGENT_CONFIGS_MAX:
            return False

        def tell(found: Versioned) -> None:
            self._call(self._value, at, SharedValue(name, found.value, found.version))

        self._follows[at] = shared.config(session, queue, name).watch(tell)
        return True

    def _unfollow(self, places: Iterable[tuple[str, str]]) -> None:
        for at in places:
            queue, name = at
            if any(one.queue == queue and name in one.follows for one in self._workers.values()):
                continue
            self._values.pop(at, None)
            follow = self._follows.pop(at, None)
            if follow is not None:
                owned(self._tidying.submit(follow.close), ends_process("the end of a follower"))

    def _value(self, at: tuple[str, str], value: SharedValue) -> None:
        if at not in self._follows:
            return
        self._values[at] = value
        for key, worker in self._workers.items():
            if worker.queue == at[0] and at[1] in worker.follows:
                self._say_value(key, at)

    # --- telling ----------------------------------------------------------------------------------

    def _say(self, key: Key) -> None:
        """Tell a worker what has become of all that it wants."""
        worker = self._workers.get(key)
        if worker is None:
            return
        for request in worker.requests.values():
            if request.held is not None:
                request.status = self._status_of(request.held)
        found = {number: one.status for number, one in worker.requests.items()}
        self._tell(key, sharing.want_states_line(found))

    def _say_value(self, key: Key, at: tuple[str, str]) -> None:
        value = self._values.get(at)
        if value is not None:
            self._tell(key, sharing.value_line(value))

    def _call(self, work: Callable[..., None], *arguments: Any) -> None:
        """From another thread: do it in the loop."""
        in_loop(self._loop, work, *arguments)


def _release(held: AcquiredLock, session: Session, path: str) -> None:
    try:
        held.release()
        shared.tidy(session, path)
    except Exception as error:  # it goes with the session at the latest
        log.warning("what a worker held is not given back yet", path=path, reason=repr(error))


def _no_queue() -> HoldfastError:
    return Usage(
        "this worker belongs to no queue",
        why="its coordinator is of an older version, or it was started without one",
        fix="bring coordinators and agents to the same version: holdfast nodes",
    )


def _too_many(key: Key) -> HoldfastError:
    return Full(
        f"worker {key} holds or waits for too much at once",
        why=f"at most {SHARED_HELD_MAX} things are held, {SHARED_WAITS_MAX} waited for, and "
        f"{SHARED_CONFIGS_MAX} values followed",
        fix="release what is not needed any more; one lock may stand for several things",
    )


def _full(node: str) -> HoldfastError:
    return Full(
        f"workers on {node} wait for too much at once",
        why=f"the agent waits for at most {SHARED_AGENT_WAITS_MAX} things at a time, and follows "
        f"at most {SHARED_AGENT_CONFIGS_MAX} values",
        fix="try again later, or spread the jobs over more machines",
    )
