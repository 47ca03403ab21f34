"""One replica's life: it listens, follows its service's course, answers, drains, and goes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress
from typing import Final

import uvloop

from holdfast.models.records import Version
from holdfast.serve.records import Replica, Service, Stage
from holdfast.serve.replica import memory
from holdfast.serve.replica.engine import Engine
from holdfast.serve.replica.following import Following, Wish
from holdfast.serve.replica.grpc_listening import GrpcListener
from holdfast.serve.replica.http import App
from holdfast.serve.replica.listening import Listener
from holdfast.serve.replica.options import Options, parsed
from holdfast.serve.replica.shelf import Shelf
from holdfast.serve.replica.tls import Tls
from holdfast.serve.replica.trial import Nest
from holdfast.serve.replica.versions import Versions
from holdfast.storage import Blobs
from holdfast.train.link import Link
from holdfast.wire import logs
from holdfast.wire.errors import BugError
from holdfast.wire.limits import STUCK_END_S, STUCK_SLACK_S
from holdfast.wire.tasks import WAITED, death, end, ends_process, start_task, start_thread

# How often a replica looks whether it has grown, and may give memory back.
MEMORY_LOOK_S: Final = 2.0
# How often a replica looks at its own computations; stuck is what it finds stuck so often in a row,
# since a process that was paused finds everything late, once.
STUCK_LOOK_S: Final = 0.5
STUCK_LOOKS: Final = 4
# A replica that is to go says so first. Gateways see it and stop sending; they have the first at
# least, and it goes when nothing came for the second; after the third it goes anyway: the notice
# that coordinators give (`NOTICE_S`) covers it, and the few seconds that its servers take to end.
DRAIN_S_MIN: Final = 1.0
DRAIN_QUIET_S: Final = 0.5
DRAIN_S_MAX: Final = 20.0
# The coordination plane is told first; when it is away, the drain begins after this.
DRAIN_SHOWN_S: Final = 2.0
# How often it looks whether it is quiet.
DRAIN_LOOK_S: Final = 0.05

__all__ = ["parsed", "serve"]

log = logs.get(__name__)

_FROZEN_EXIT: Final = BugError.exit_code


def serve(options: Options) -> int:
    """Run a replica until it is told to leave. 0 if it left as it should."""
    nest = Nest.fork(options.blobs)  # before any thread
    link = Link.from_environment(ends_process("the line to the agent"))
    try:
        return uvloop.run(_Main(options, nest, link).run())
    finally:
        nest.close()
        if link is not None:
            link.close()


class _Main:
    """One replica."""

    def __init__(self, options: Options, nest: Nest, link: Link | None) -> None:
        self._options = options
        self._nest = nest
        self._link = link
        self._stop = asyncio.Event()
        self._code = 0
        self._course = 0
        self._started_s = time.time()
        self._beat_s = time.monotonic()

    async def run(self) -> int:
        options = self._options
        self._loop = asyncio.get_running_loop()
        # Until the plane has said what the service is, it has the name that we were given.
        unknown = Service(name=options.service, model=options.service, target="")
        self._engine = Engine(
            unknown, worker=options.worker, region=options.region, logs=options.logs
        )
        self._app = App(self._engine)
        self._following = Following(options.connect, options.service)
        shelf = Shelf(options.shelf, options.worker)
        self._versions = Versions(self._engine, shelf, self, self._nest, self._changed)
        self._listen_to_signals()
        tls = self._tls = Tls.found(options.host, os.environ)
        context = tls.context() if tls else None
        listener = Listener(self._app, options.host, options.http_port, tls=context)
        await listener.start()
        self._grpc = GrpcListener(
            self._engine, options.host, options.grpc_port, tls.credentials() if tls else None
        )
        await self._grpc.start()
        log.info("a replica listens", http=f"{options.host}:{options.http_port}")
        self._following.changed()
        tasks = [
            start_task(self._following.run(self._wish, self._shown), "following", WAITED),
            start_task(self._versions.run(), "versions", WAITED),
            start_task(self._look(), "look", WAITED),
            start_task(self._grpc.run(), "grpc", WAITED),
            start_task(_give_memory_back(), "memory", WAITED),
        ]
        start_thread(self._guard, "guard", lasts="the loop may be stuck to the very end")
        try:
            await self._until_stopped(tasks)
            await self._drain()
        finally:
            await end(*tasks)
            await self._following.leave()
            await self._grpc.stop()
            await listener.stop()
            await self._engine.close()
        if self._link is not None and not self._code and death() is None:
            self._link.left()
        return self._code

    # --- where versions come from (`versions.Source`) --------------------------------------------

    def record(self, number: int) -> Version:
        return self._following.record(self._engine.service.model, number)

    def blobs(self) -> Blobs:
        return self._options.blobs()

    # --- what is wanted, and what is shown -------------------------------------------------------

    def _wish(self, wish: Wish) -> None:
        """Follow it. What is not there, or cannot be read, changes nothing."""
        if wish.service is not None:
            self._engine.configure(wish.service)
            self._grpc.changed()
        course = wish.course
        if course is not None:
            under_way = course.stage in (Stage.LOADING, Stage.SHIFTING)
            self._engine.follow(course.stable, course.next if under_way else None)
            self._course = course.number
            self._versions.hold(course.hold, course.wishes)

    def _shown(self) -> Replica:
        options = self._options
        return Replica(
            service=options.service,
            worker=options.worker,
            host=options.host,
            http_port=options.http_port,
            grpc_port=options.grpc_port,
            node=options.node,
            region=options.region,
            versions=dict(self._versions.states),
            draining=self._engine.draining,
            course=self._course,
            started_s=self._started_s,
            trust=self._tls.trust if self._tls else "",
        )

    def _changed(self) -> None:
        self._following.changed()
        if self._link is not None and self._engine.ready():
            self._link.ready()

    # --- the end ---------------------------------------------------------------------------------

    def _listen_to_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stop.set)
        if self._link is not None:
            self._link.listen(self._news)

    def _news(self) -> None:
        """In the link's thread. Replicas have no lanes: a view is adopted as it comes."""
        link = self._link
        assert link is not None
        view = link.view(0.0)
        if view is not None:
            link.adopted(view.number, None)
        if link.leaving and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)

    async def _until_stopped(self, tasks: list[asyncio.Task[None]]) -> None:
        """Raises what ended one of our tasks, if one has."""
        stopped = start_task(self._stop.wait(), "stop", WAITED)
        done, _ = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
        await end(stopped)
        for task in done - {stopped}:
            error = task.exception()
            if error is not None:
                raise error

    async def _drain(self) -> None:
        """Say that we go, and answer until nothing comes any more."""
        engine, app = self._engine, self._app
        engine.draining = True
        self._following.changed()
        log.info("draining", unanswered=engine.unanswered)
        began_s = time.monotonic()
        await self._following.shown(DRAIN_SHOWN_S)
        seen_s = time.monotonic()
        while time.monotonic() - began_s < DRAIN_S_MAX:
            now_s = time.monotonic()
            busy = app.active or engine.unanswered
            quiet_s = now_s - max(app.last_s, engine.last_s)
            if now_s - seen_s >= DRAIN_S_MIN and not busy and quiet_s >= DRAIN_QUIET_S:
                break
            await asyncio.sleep(DRAIN_LOOK_S)
        log.info("drained", took_s=round(time.monotonic() - began_s, 3))

    # --- is it well? -----------------------------------------------------------------------------

    async def _look(self) -> None:
        """A computation that never ends can only be ended with the process: drain, and go."""
        looks = 0
        while True:
            self._beat_s = time.monotonic()
            stuck = self._engine.hopeless() or self._versions.stuck(time.monotonic())
            looks = looks + 1 if stuck else 0
            if looks >= STUCK_LOOKS:
                log.error("something does not come to an end: this replica does", stuck=stuck)
                self._code = BugError.exit_code
                self._stop.set()
                return
            await asyncio.sleep(STUCK_LOOK_S)

    def _guard(self) -> None:
        """In a thread: a loop that is stuck in a computation cannot even say so."""
        looks = 0
        while True:
            time.sleep(STUCK_LOOK_S)
            limit_s = self._engine.service.limits.timeout_s + STUCK_SLACK_S + STUCK_END_S
            late = time.monotonic() - self._beat_s > limit_s
            # Several looks: a process that was paused for long is late as well, but only once.
            looks = looks + 1 if late and not self._stop.is_set() else 0
            if looks >= STUCK_LOOKS:
                with suppress(Exception):
                    log.critical("the event loop is stuck: this replica ends")
                os._exit(_FROZEN_EXIT)


async def _give_memory_back() -> None:
    """What large requests took is not ours for ever."""
    growth = memory.Growth()
    while True:
        await asyncio.sleep(MEMORY_LOOK_S)
        if growth.is_over(memory.resident_bytes()):
            await asyncio.to_thread(memory.give_back)
            growth.given_back(memory.resident_bytes())
