"""Several questions that travel together: sent one after the other, awaited as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kazoo import exceptions as kz

from holdfast.coordination.waits import Deadline


class Together:
    """The answers to several reads, in order; None for a node that is not there.

    Has those methods of kazoo's own answers that are used. The first other error is raised.
    """

    def __init__(self, answers: Sequence[Any]) -> None:
        self._answers = answers

    def wait(self, timeout: float | None) -> bool:
        deadline = Deadline(timeout)
        return all(answer.wait(deadline.left_s()) for answer in self._answers)

    def get(self, timeout: float | None = None, *, block: bool = True) -> list[Any]:
        deadline = Deadline(timeout)
        found = []
        for answer in self._answers:
            try:
                found.append(answer.get(block=block, timeout=deadline.left_s()))
            except kz.NoNodeError:
                found.append(None)
        return found


class Behind:
    """The answer to a read that was sent behind a fence: one answer, or none.

    `counts` is asked when both are here: whether they came over the same connection. A fence that
    another server has passed says nothing of this one; then it is as if the link had been lost.
    """

    def __init__(self, fence: Any, read: Any, counts: Callable[[], bool]) -> None:
        self._fence = fence
        self._read = read
        self._counts = counts

    def get(self, timeout: float | None) -> Any:
        deadline = Deadline(timeout)
        self._fence.get(timeout=deadline.left_s())
        if self._read.wait(deadline.left_s()) and not self._counts():
            raise kz.ConnectionLoss
        return self._read.get(block=False)
