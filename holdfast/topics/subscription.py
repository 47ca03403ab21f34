"""A function that is called for each record, in a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from holdfast.system.tasks import start_thread
from holdfast.topics.consumer import Consumer
from holdfast.topics.records import Record
from holdfast.wire.errors import RetryError

T = TypeVar("T")

# What is tried again waits so long at first, twice as long each time, and so long at most.
PAUSE_S: Final = 0.2
PAUSE_S_MAX: Final = 10.0
RETRIES: Final = 5
_POLL_S: Final = 0.5
_ENDED_S: Final = 30.0

_log = logging.getLogger(__name__)


class Subscription:
    """Calls `fn(record)` for each record, in order of their partition, at least once: a group's
    offsets are committed after what was handled.

    An error of `fn` is tried again, `retries` times with growing pauses. Then the subscription has
    failed: `on_failed` is told, or the log, and `close` raises it. The record is not committed, so
    it comes again. Brokers that are away are waited for, for ever.
    """

    def __init__(
        self,
        consumer: Consumer,
        fn: Callable[[Record], object],
        *,
        retries: int = RETRIES,
        on_failed: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._consumer = consumer
        self._fn = fn
        self._retries = retries
        self._on_failed = on_failed
        self._ending = threading.Event()
        self.handled = 0
        self.error: BaseException | None = None
        self._name = f"subscription-{'-'.join(consumer.topics)}"
        self._thread = start_thread(self._run, self._name, self._fail)

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def closed(self) -> bool:
        return self._ending.is_set()

    def close(self) -> None:
        """End it, after the record that is being handled. Raises what it failed of, once."""
        self._ending.set()
        ended = self._thread.join(_ENDED_S)
        self._consumer.close()
        if not ended:
            _log.warning("%s is still in its function; its record comes again", self._name)
        error, self.error = self.error, None
        if error is not None:
            raise error

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- in its thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ending.is_set():
            records = self._patiently(lambda: self._consumer.poll(_POLL_S)) or []
            done: list[Record] = []
            try:
                for record in records:
                    if self._ending.is_set():
                        break
                    self._call(record)
                    done.append(record)
                    self.handled += 1
            finally:
                if done and self._consumer.group is not None:
                    self._patiently(lambda done=done: self._consumer.commit(done))  # type: ignore[misc]

    def _patiently(self, step: Callable[[], T]) -> T | None:
        """What it returns; again and again while the brokers are away, until this is to end."""
        pause_s = PAUSE_S
        while True:
            try:
                return step()
            except RetryError as error:
                _log.warning("%s: %s; it goes on", self._name, error.sentence)
                if self._ending.wait(pause_s):
                    return None
                pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def _call(self, record: Record) -> None:
        for attempt in range(self._retries + 1):
            try:
                self._fn(record)
            except Exception as error:  # whatever a user's function raises
                if attempt == self._retries or self._ending.is_set():
                    error.add_note(f"for {record}")
                    raise
                _log.warning("%s failed for %s: %s", self._name, record, error)
                self._ending.wait(min(PAUSE_S * 2**attempt, PAUSE_S_MAX))
            else:
                return

    def _fail(self, error: BaseException) -> None:
        self.error = error
        if self._on_failed is not None:
            self._on_failed(error)
        else:
            _log.error("a subscription has ended: %s", error, exc_info=error)
