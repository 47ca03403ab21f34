"""Who compacts: looks now and then for logs of which enough has changed, and cleans one at a time.

The work is done in a thread of its own; the loop takes the plan and puts the new files in place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.system import logs
from holdfast.system.clock import Clock
from holdfast.system.tasks import OwnedThread, in_loop, start_thread
from holdfast.topics.broker.disk import compaction
from holdfast.topics.broker.disk.compaction import Cleaned, CompactionPlan
from holdfast.topics.broker.disk.segment import DamagedSegment
from holdfast.topics.broker.disk.store import BrokerStore, Key

log = logs.get(__name__)


class Cleaner:
    """Compaction of one broker's logs. Used in its loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: BrokerStore,
        clock: Clock,
        died: Callable[[BaseException], None],
    ) -> None:
        self._loop = loop
        self._store = store
        self._clock = clock
        self._died = died
        self._thread: OwnedThread | None = None
        self._cleaned_until: dict[Key, int] = {}  # not kept over a restart: it is done once more

    def look(self) -> None:
        """Begin a pass, if a log needs one and none is on its way."""
        if self._thread is not None:
            return
        for key in self._store.logs:
            work = self._plan(key)
            if work is not None:
                self._begin(key, work)
                return

    def waits_for_snapshot(self) -> bool:
        """Whether there are closed segments to clean that no snapshot knows as closed."""
        for key, held in self._store.logs.items():
            topic = self._store.state.by_id.get(key[0])
            if topic is None or not topic.settings.compacts or len(held.segments) < 2:
                continue
            if held.segments[-1].base_offset > self._store.closed_before.get(key, 0):
                return True
        return False

    def _plan(self, key: Key) -> CompactionPlan | None:
        topic = self._store.state.by_id.get(key[0])
        held = self._store.logs[key]
        if topic is None or not topic.settings.compacts or len(held.segments) < 2:
            return None
        if not self._store.is_settled(key) or held.damage is not None:
            return None  # nobody has used it since the start: soon; or it stays as it is
        partition = topic.partitions[key[1]]
        return compaction.plan(
            held.segments,
            closed_before=self._store.closed_before.get(key, 0),
            cleaned_until=self._cleaned_until.get(key, 0),
            stable=partition.last_stable_offset,
            aborted=list(partition.aborted),
            settings=topic.settings,
            now_ms=self._clock.wall_ms(),
        )

    def _begin(self, key: Key, work: CompactionPlan) -> None:
        def run() -> None:
            made: Cleaned | DamagedSegment | None = None
            try:
                made = compaction.clean(work)
            except DamagedSegment as damage:
                made = damage
            except OSError as error:
                # Its topic was deleted meanwhile, or there is no space for the new files.
                log.warning(
                    "a log was not compacted", file=str(work.segments[0].path), why=str(error)
                )
            in_loop(self._loop, self._finish, key, made)

        self._thread = start_thread(run, "topics-cleaner", self._died)

    def _finish(self, key: Key, made: Cleaned | DamagedSegment | None) -> None:
        if self._thread is not None:
            self._thread.join()
        self._thread = None
        held = self._store.logs.get(key)
        if made is None or held is None:
            return
        if isinstance(made, DamagedSegment):
            held.note_damage(made)
            return
        for base_offset, path in made.segments:
            held.replace(base_offset, path)
        self._cleaned_until[key] = made.until
        self.look()

    def close(self) -> None:
        """Wait for the pass that runs."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
