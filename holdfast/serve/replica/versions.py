"""Holds what the plan says: loads beside the requests, swaps in at once, unloads afterwards.

One version is loaded at a time, the most needed first. A process of low priority fetches and
verifies its files, and tries it where that protects something; only then a thread loads it beside
the others, warms it up and checks it, and it answers. One that fails says why and disturbs nobody.
Whatever may be better in a moment (the store is away) is tried again.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

from holdfast.models.kinds import Servable
from holdfast.models.records import ModelKind, Version
from holdfast.serve.priority import lower_own_priority
from holdfast.serve.records import Load, Loaded
from holdfast.serve.replica.aside import Aside
from holdfast.serve.replica.batching import changing_often, first_line
from holdfast.serve.replica.engine import Engine
from holdfast.serve.replica.model_cache import ModelCache
from holdfast.serve.replica.trial import Manner, PreforkServer, Prepared, prepare
from holdfast.storage import Blobs
from holdfast.system import backoff, logs
from holdfast.system.tasks import Tasks
from holdfast.wire.errors import (
    BadModel,
    Cancelled,
    Corrupt,
    HoldfastError,
    Missing,
    RetryError,
    Unavailable,
)
from holdfast.wire.limits import LOAD_REASON_CHARACTERS_MAX, TRIAL_S

# A replica that serves nothing, and loads what nobody wants any more, ends itself after this: what
# is wanted instead cannot be loaded before.
LOAD_ABANDONED_S: Final = 5.0
# The store or the plane was away while a version was to be loaded: tried again after this.
LOAD_RETRY_S: Final = 1.0
LOAD_RETRY_S_MAX: Final = 15.0
# So many processes that died while they loaded a version: it is not loaded on that machine again
# until users ask anew. More than one, because a process may be killed at any moment by others.
LOAD_DEATHS_MAX: Final = 3

T = TypeVar("T")

log = logs.get(__name__)

# What may be mended without anybody asking this replica again: it looks again now and then.
_PASSING: Final = (RetryError, Missing, Corrupt, OSError)


class VersionSource(Protocol):
    """Where versions come from. Both may block, and fail while the plane or the store is away."""

    def record(self, number: int) -> Version: ...
    def blobs(self) -> Blobs: ...


class Versions:
    """Runs in the event loop. `changed` is called whenever `states` have."""

    def __init__(
        self,
        engine: Engine,
        cache: ModelCache,
        source: VersionSource,
        prefork: PreforkServer | None,
        changed: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._cache = cache
        self._source = source
        self._prefork = prefork
        self._changed = changed
        self._aside = Aside(lower_own_priority)
        self._wanted: tuple[int, ...] = ()
        self._version_revision: int | None = None
        self._retries: dict[int, tuple[int, float]] = {}  # failed so often; not before then
        self._forgotten: set[str] = set()  # libraries: see `_forget_libraries`
        self._forgiven: set[int] = set()  # users have asked for them again
        self._apart: int | None = None  # what the prefork server is busy with
        self._loading: tuple[int, float] | None = None  # in this one, since then
        self._cold: Version | None = None  # what the prefork server is not warm for
        self._warm: set[ModelKind] = set()
        self._servables: dict[int, tuple[Version, Servable]] = {}
        self._unloading = Tasks()
        self._wake = asyncio.Event()
        self.states: dict[int, Loaded] = {}

    def hold(self, numbers: Sequence[int], version_revision: int) -> None:
        """Hold these, the most needed first, and no others. `version_revision` counts what users
        asked for: when it has changed, whatever failed is tried once more."""
        self._wanted = tuple(dict.fromkeys(numbers))
        if version_revision != self._version_revision:
            if self._version_revision is not None:
                self._forgiven.update(self._wanted)
            self._version_revision = version_revision
            self._retries.clear()
            for number, loaded in [*self.states.items()]:
                if loaded.state is Load.FAILED:
                    del self.states[number]
        for number in [*self.states]:
            if number not in self._wanted:
                del self.states[number]
                self._retries.pop(number, None)
                self._unload(number)
        if (
            self._apart is not None
            and self._apart not in self._wanted
            and self._prefork is not None
        ):
            self._prefork.stop()  # others wait for their turn
        for number in self._wanted:
            if number not in self.states:
                self.states[number] = Loaded(Load.LOADING, since_s=time.time())
        self._wake.set()
        self._changed()

    async def run(self) -> None:
        """Load what is wanted, until it is cancelled."""
        try:
            await self._run()
        finally:
            await self._unloading.close()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            number, wait_s = self._next(time.monotonic())
            if number is not None:
                await self._load(number)
                continue
            if self._cold is not None:
                await self._aside.call(self._warm_nest)
                continue
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    # --- loading ---------------------------------------------------------------------------------

    def _next(self, now_s: float) -> tuple[int | None, float | None]:
        """What to load now; else how long until something is tried again."""
        soonest: float | None = None
        for number in self._wanted:
            if self.states[number].state is Load.READY:
                continue
            failed, not_before_s = self._retries.get(number, (0, 0.0))
            if self.states[number].state is Load.FAILED and not failed:
                continue  # for good
            if not_before_s <= now_s:
                return number, None
            soonest = min(soonest or not_before_s, not_before_s)
        return None, None if soonest is None else soonest - now_s

    async def _load(self, number: int) -> None:
        began_s = time.monotonic()
        try:
            record, prepared = await self._aside.call(lambda: self._prepared(number))
        except Exception as error:
            self._failed(number, error)
            return
        finally:
            self._apart = self._loading = None
        if number not in self._wanted:
            await self._give_back(record, prepared.servable)
            return
        try:
            batches, pace = prepared.manner
            self._engine.install(record, prepared.servable.predict, batches=batches, pace=pace)
        except HoldfastError as error:
            self._failed(number, error)
            await self._give_back(record, prepared.servable)
            return
        self._retries.pop(number, None)
        self._servables[number] = (record, prepared.servable)
        self._cold = None if record.kind in self._warm else record
        self._say(number, Loaded(Load.READY, since_s=time.time()))
        log.info(
            "a version is ready",
            version=f"{record.model}@{number}",
            took_s=round(time.monotonic() - began_s, 3),
            batches=batches,
            pace=pace.value,
        )

    def _prepared(self, number: int) -> tuple[Version, Prepared]:
        """In the thread: everything that takes time."""
        record = self._source.record(number)
        if record.retired:
            raise BadModel(f"{record.model}@{number} was retired", why=record.retired)
        cache, batch_max = self._cache, self._engine.service.limits.batch_max
        folder = cache.claim(record)
        try:
            with cache.turn(record, lambda: self._nothing_to_do(record)):
                self._fetched(record)
                risky = self._risky(record)
                known = self._tried(record, folder, batch_max) if risky else None
            with cache.loading(record), changing_often():
                self._loading = (number, time.monotonic())
                known = known or cache.manner(record, batch_max)
                prepared = prepare(record, folder, batch_max, known)
            cache.prove(record, batch_max, prepared.manner)
            self._forget_libraries()
        except BaseException:
            cache.release(record)
            raise
        return record, prepared

    def _nothing_to_do(self, record: Version) -> bool:
        """Whether somebody else on this machine has fetched and tried it."""
        self._check_wanted(record)
        return self._cache.present(record) and not self._risky(record)

    def _check_wanted(self, record: Version) -> None:
        if record.number not in self._wanted:
            raise Cancelled(f"version {record.number} is not wanted any more")

    def _forget_libraries(self) -> None:
        """Let the garbage collector forget what has been imported: with torch it would go through
        all of that for a tenth of a second now and then, and every request would wait. Not after
        each version: what is forgotten is never freed."""
        libraries = "torch" if "torch" in sys.modules else "others"
        if libraries not in self._forgotten:
            self._forgotten.add(libraries)
            gc.collect()
            gc.freeze()

    def _risky(self, record: Version) -> bool:
        """Whether it must be tried first: something is at stake here, or it has killed before."""
        if record.number in self._forgiven:
            self._forgiven.discard(record.number)
            self._cache.forgive(record)
        deaths = self._cache.deaths(record)
        if deaths >= LOAD_DEATHS_MAX:
            raise BadModel(
                f"loading {record.model}@{record.number} has ended {deaths} processes here",
                fix="see the logs of the replicas that have ended",
            )
        return deaths > 0 or (bool(self._engine.versions) and not self._cache.proven(record))

    def _fetched(self, record: Version) -> None:
        """Its files are there, verified: by us, or by another replica of this machine just now."""
        if self._cache.verified(record):
            return
        if not self._by_prefork(record, lambda prefork: prefork.fetch(record, self._cache.folder)):
            self._check_wanted(record)
            self._cache.fetch(record, self._source.blobs())
        self._cache.verify(record)

    def _tried(self, record: Version, folder: Path, batch_max: int) -> Manner | None:
        found = self._by_prefork(record, lambda prefork: prefork.trial(record, folder, batch_max))
        if found is not None:
            self._cache.tried(record, batch_max, found)
        return found

    def _warm_nest(self) -> None:
        """In the thread, when there is nothing to load: the first version was loaded without a
        trial, and the next one would wait until the prefork server has imported torch."""
        record, self._cold = self._cold, None
        if record is None or self._prefork is None:
            return
        self._warm.add(record.kind)
        try:
            self._prefork.warm(record)
        except Unavailable as error:
            log.warning("the prefork server is gone", reason=str(error))

    def _by_prefork(self, record: Version, task: Callable[[PreforkServer], T]) -> T | None:
        """What the prefork server has found out; None if there is none."""
        if self._prefork is None:
            return None
        self._apart = record.number
        try:
            self._check_wanted(record)
            return task(self._prefork)
        except BadModel:
            self._check_wanted(record)  # else it was stopped, and that says nothing about it
            raise
        except Unavailable as error:
            log.warning("a version is loaded without a trial", reason=str(error))
            self._prefork = None
            return None
        finally:
            self._apart = None

    def stuck(self, now_s: float) -> str:
        """What is loaded in this process and does not come to an end; empty: nothing. Only the end
        of the process ends it: the next one finds its mark, and tries the version apart."""
        if self._loading is None:
            return ""
        number, since_s = self._loading
        idle = number not in self._wanted and not self._engine.versions
        limit_s = LOAD_ABANDONED_S if idle else TRIAL_S
        return f"version {number}" if now_s - since_s > limit_s else ""

    def _failed(self, number: int, error: Exception) -> None:
        reason = _reason(error)
        if number not in self._wanted:
            return
        passing = isinstance(error, _PASSING)
        tries = self._retries.get(number, (0, 0.0))[0] + 1
        if passing:
            pause_s = backoff.pause_s(tries, LOAD_RETRY_S, LOAD_RETRY_S_MAX)
            self._retries[number] = (tries, time.monotonic() + pause_s)
        else:
            self._retries.pop(number, None)
        # Nobody was reached: that says nothing about the version.
        away = isinstance(error, RetryError | OSError)
        before = self.states[number]
        after = Load.LOADING if away else Load.FAILED
        if (before.state, before.reason) != (after, reason):
            log.warning("a version is not loaded", version=number, reason=reason, again=passing)
            self._say(number, Loaded(after, reason, time.time()))

    def _say(self, number: int, loaded: Loaded) -> None:
        self.states[number] = loaded
        self._changed()

    # --- unloading -------------------------------------------------------------------------------

    def _unload(self, number: int) -> None:
        held = self._servables.pop(number, None)
        if held is not None:
            self._unloading.start(self._close(number, *held), f"unload {number}")

    async def _close(self, number: int, record: Version, servable: Servable) -> None:
        if not await self._engine.remove(number):
            return  # it computes still: taking its memory away would end the process
        await self._give_back(record, servable)
        log.info("a version is unloaded", version=f"{record.model}@{number}")

    async def _give_back(self, record: Version, servable: Servable) -> None:
        """Its memory, and its files. What a model's own `close` raises stops nobody."""
        for what in (servable.close, partial(self._cache.release, record)):
            try:
                await self._aside.call(what)
            except Exception as error:
                name = f"{record.model}@{record.number}"
                log.warning("a version did not go cleanly", version=name, reason=first_line(error))


def _reason(error: Exception) -> str:
    text = error.sentence if isinstance(error, HoldfastError) else first_line(error)
    return text.replace("\n", " ")[:LOAD_REASON_CHARACTERS_MAX]
