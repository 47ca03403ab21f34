"""How long a run that was told to stop waits for its script. Pure but for `being_written`.

The first Ctrl-C asks for a checkpoint and an end. A script that hangs, or that never reaches a
step, must not make its user wait: when the time is over, everything is ended. Only a checkpoint
that is visibly being written gets longer: it is what the user waits for.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# After the first Ctrl-C a script has so long to reach a step and save it. What then lives is
# killed, and all is over within 10 s: longer, and people close the terminal.
RUN_INTERRUPT_S: Final = 7.0
# While bytes of a checkpoint come, it gets so much longer each time; all together at most so long,
# as a job of a cluster does.
RUN_WRITING_S: Final = 2.0
RUN_SAVE_S: Final = 300.0


@dataclass
class Countdown:
    """The time that is left since the first Ctrl-C, on the monotonic clock."""

    asked_s: float
    writing: bool = False
    _until_s: float = 0.0

    def left_s(self, now_s: float, *, writing: bool) -> float:
        """How long it still has. `writing`: bytes of a checkpoint have come a moment ago."""
        self.writing = writing
        self._until_s = max(self._until_s, self.asked_s + RUN_INTERRUPT_S)
        if writing:
            self._until_s = max(self._until_s, now_s + RUN_WRITING_S)
        return min(self._until_s, self.asked_s + RUN_SAVE_S) - now_s


def countdown_text(left_s: float, *, writing: bool) -> str:
    """What stands on the screen meanwhile."""
    if writing:
        return "writing a checkpoint, then stopping; Ctrl-C again ends at once"
    seconds = max(1, math.ceil(left_s))
    return f"saving, then stopping: ending in {seconds} s; Ctrl-C again ends at once"


def being_written(folder: Path) -> bool:
    """Whether anything in this folder has changed a moment ago."""
    now_s = time.time()
    try:
        return any(now_s - each.stat().st_mtime < RUN_WRITING_S for each in folder.iterdir())
    except OSError:
        return False  # there is no such folder, or a file of it has just got its name
