"""Looking at a job from a thread: a plane that does not answer never stops what people see."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from holdfast.cli.run.story import Story
from holdfast.control.decide.facts import Job
from holdfast.control.store.codec import Entry
from holdfast.control.store.plane import ControlPlane
from holdfast.wire.errors import HoldfastError
from holdfast.wire.limits import THREAD_END_S
from holdfast.wire.tasks import start_thread

# The job's facts are looked at so often; its steps come by themselves.
RUN_LOOK_S: Final = 0.3
# Its history is read again at least so often, also when nothing else has changed.
RUN_HISTORY_S: Final = 2.0
# What a run keeps of its own: samples of progress for the summary, lines that wait to be shown.
RUN_LINES_MAX: Final = 2_000


@dataclass(frozen=True, slots=True)
class Seen:
    """The job as it was last read. `trouble`: why it could not be read since; None: it could."""

    job: Job
    trouble: HoldfastError | None = None


class Looking:
    """Reads a job and what is new in its history, again and again, on a thread of its own."""

    def __init__(
        self, plane: ControlPlane, job: Job, known: list[Entry], news: Callable[[], None]
    ) -> None:
        self._plane = plane
        self._news = news
        self._story = Story(known)
        self._lock = threading.Lock()
        self._seen = Seen(job)
        self._entries: list[Entry] = []
        self._read_s = 0.0
        self._stop = threading.Event()
        self._thread = start_thread(self._run, "holdfast-looking")

    def seen(self) -> Seen:
        with self._lock:
            return self._seen

    def entries(self) -> list[Entry]:
        """What was decided since the last call."""
        with self._lock:
            taken, self._entries = self._entries, []
        return taken

    def close(self) -> None:
        self._stop.set()
        self._thread.join(THREAD_END_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._stop.wait(RUN_LOOK_S):
            before = self.seen()
            try:
                job = self._plane.job(before.job.name)
                due = time.monotonic() >= self._read_s + RUN_HISTORY_S
                history = self._plane.history(job.name) if due or job != before.job else None
            except HoldfastError as error:
                if not self._stop.is_set():
                    self._publish(Seen(before.job, error), [])
                continue
            if history is not None:
                self._read_s = time.monotonic()
            entries = self._story.news(history or [])
            if entries or job != before.job or before.trouble is not None:
                self._publish(Seen(job), entries)

    def _publish(self, seen: Seen, entries: list[Entry]) -> None:
        with self._lock:
            self._seen = seen
            self._entries = [*self._entries, *entries][-RUN_LINES_MAX:]
        self._news()
