"""Several questions that travel together: sent one after the other, awaited as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kazoo import exceptions as kz

from holdfast.coordination.waits import Deadline


class Together:
    """The answers to several reads, in order; None for a node that is not there.

    Has the one method of kazoo's own answers that is used. The first other error is raised.
    """

    def __init__(self, answers: Sequence[Any]) -> None:
        self._answers = answers

    def get(self, timeout: float | None) -> list[Any]:
        deadline = Deadline(timeout)
        found = []
        for answer in self._answers:
            try:
                found.append(answer.get(timeout=deadline.left_s()))
            except kz.NoNodeError:
                found.append(None)
        return found
