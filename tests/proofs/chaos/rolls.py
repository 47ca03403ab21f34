"""Rollouts and rollbacks, one at a time, while all is disturbed."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from holdfast.serve.services import Services
from holdfast.wire.errors import HoldfastError, RetryError
from tests.proofs.chaos.script import Act
from tests.proofs.control.events import Event, Fault
from tests.proofs.patience import PATIENCE_S, patiently
from tests.proofs.serving.cluster import SERVICE
from tests.proofs.serving.models import Publisher

T = TypeVar("T")
# More wait for nothing: each takes seconds.
WAITING_MAX: Final = 3


class Rolls:
    """A thread of its own: publishing waits for the plane, and nobody else shall."""

    def __init__(
        self, services: Services, publisher: Publisher, note: Callable[[Event], None]
    ) -> None:
        self._services, self._publisher, self._note = services, publisher, note
        self._asked: queue.Queue[Act | None] = queue.Queue(WAITING_MAX)
        self._thread = threading.Thread(target=self._run, name="rolls", daemon=True)
        self.trouble: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def ask(self, act: Act) -> bool:
        """Whether it is taken up; not, if too many wait already."""
        try:
            self._asked.put_nowait(act)
        except queue.Full:
            return False
        return True

    def close(self) -> None:
        """When those that were asked for are done."""
        while self._thread.is_alive():
            with suppress(queue.Full):
                self._asked.put(None, timeout=1.0)
                break
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        try:
            while (act := self._asked.get()) is not None:
                self._roll(act)
        except BaseException as error:
            self.trouble = error

    def _roll(self, act: Act) -> None:
        try:
            if act.verb == "rollback":
                _asked(lambda: self._services.rollback(SERVICE))
                words = "back to the version before"
            else:
                number = _asked(lambda: self._publisher.publish(act.trouble))
                _asked(lambda: self._services.rollout(SERVICE, str(number)))
                words = f"version {number}" + (f", which is {act.trouble}" if act.trouble else "")
        except HoldfastError as error:
            # No version before this one, or it is already served: an answer, and no accident.
            words = f"refused: {error.what}"
        self._note(Fault(time.time(), act.what, words))


def _asked(ask: Callable[[], T]) -> T:
    """What is missing stays missing: only the plane's silence is waited out."""
    return patiently(ask, wrong=(RetryError,))
