"""What is said to code that runs while the state under it is replaced."""

from __future__ import annotations

from holdfast.wire.errors import Unavailable


class Replaced(BaseException):
    """The state under a hook was replaced by that of a member further ahead: it is to be given up.
    No `Exception`, so that no hook catches it by accident."""


def left_behind() -> Unavailable:
    return Unavailable(
        "this worker was left behind in the middle of something for all workers",
        why="the others have gone on without it",
        fix="nothing: it is started again and takes their state",
    )
