"""Sequential code in a world of events: a generator that waits by yielding.

What is yielded says how to begin to wait, and is handed the function that goes on. A flow belongs
to a process and ends with its life: whatever would wake it is lost on the dead.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

Wait = Callable[[Callable[[Any], None]], None]
Steps = Generator[Wait, Any, None]


class Flow:
    """Runs `steps` until it ends. Each wait goes on once, however often it is woken."""

    __slots__ = ("_steps", "_turn")

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._turn = 0
        self._go_on(None)

    def cancel(self) -> None:
        """Never go on."""
        self._turn += 1

    def _go_on(self, value: Any) -> None:
        self._turn += 1
        turn = self._turn
        try:
            wait = self._steps.send(value)
        except StopIteration:
            return
        wait(lambda result: self._go_on(result) if turn == self._turn else None)
