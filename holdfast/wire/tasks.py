"""Tasks with an owner: whoever starts one hears of it when it dies.

    task = owned(asyncio.create_task(work()), died)

A task whose exception nobody asks for dies in silence, and what it did is not done any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from holdfast.wire.errors import BugError

T = TypeVar("T", bound="asyncio.Future[Any] | Future[Any]")
Died = Callable[[BaseException], None]


def owned(task: T, died: Died) -> T:
    """The same task. `died` is called with its exception, if it ends by one; one that is called off
    does not. It is called where the task ends: in its loop, or in its thread."""

    def ended(task: Any) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            died(error)

    task.add_done_callback(ended)
    return task


def unexpected(what: str, error: BaseException) -> BugError:
    """The error with which a process ends that has lost a part of itself."""
    found = BugError(
        f"{what} has ended unexpectedly",
        why=f"{type(error).__name__}: {error}",
        fix="start it again, and report what its log says",
    )
    found.__cause__ = error
    return found
