"""When a process that has died is started again, and when nobody tries any more. Pure.

- What had lived for a while is started again at once; what dies soon after its start, after a pause
  that doubles with each death in a row, up to a bound.
- Deaths that are its own doing (an error, a crash) are counted. After so many in a row it is given
  up: the state says so, with its last words, and `holdfast up` tries again.
- One that was killed from outside, was told to end, or ended because something was not to be had at
  that moment (a full disk, a plane that does not answer) is never given up.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from typing import Final

from holdfast.system import backoff
from holdfast.wire.errors import RetryError
from holdfast.wire.limits import KEEP_STEADY_S

# One that dies again soon is started after a pause, which doubles each time up to the second: a
# machine with a broken part is busy with it for some percent of its time at most.
KEEP_PAUSE_S: Final = 0.25
KEEP_PAUSE_S_MAX: Final = 30.0
# After so many deaths in a row that were its own doing (about half a minute of tries) a process is
# given up: nothing that a person does not mend will help.
KEEP_FAULTS_MAX: Final = 8

# Somebody outside did it.
_KILLED: Final = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


@dataclass(frozen=True, slots=True)
class ProcessDeath:
    """How a process ended. `code` as `Popen.returncode`; None: it was not our child. `in_order`: it
    took its record away, so nobody killed it. `words`: the last that it said."""

    lived_s: float
    code: int | None = None
    in_order: bool = False
    words: str = ""

    @property
    def own_doing(self) -> bool:
        if self.code is None:
            return self.in_order
        if self.code < 0:
            return -self.code not in _KILLED
        return self.code not in (0, RetryError.exit_code)

    def sentence(self) -> str:
        """For people: `was killed (SIGKILL)`, `ended (exit code 2): no such model`."""
        if self.code is None:
            text = "ended" if self.in_order else "was killed"
        elif self.code < 0:
            text = f"was killed ({_signal_name(-self.code)})"
        else:
            text = f"ended (exit code {self.code})" if self.code else "was told to end"
        return f"{text}: {self.words}" if self.words and self.own_doing else text


@dataclass(frozen=True, slots=True)
class Care:
    """How keeping one process goes. `deaths`: in a row, each soon after its start; `faults`: those
    of them that were its own doing; `pause_s`: until it is started again; `why`: its last death."""

    deaths: int = 0
    faults: int = 0
    pause_s: float = 0.0
    gave_up: bool = False
    why: str = ""


def after(care: Care, death: ProcessDeath) -> Care:
    """What follows from a death."""
    steady = death.lived_s >= KEEP_STEADY_S
    deaths = 1 if steady else care.deaths + 1
    faults = (0 if steady else care.faults) + death.own_doing
    pause_s = backoff.pause_s(deaths - 1, KEEP_PAUSE_S, KEEP_PAUSE_S_MAX)
    found = Care(deaths, faults, pause_s, why=death.sentence())
    if faults >= KEEP_FAULTS_MAX:
        return replace(found, gave_up=True, pause_s=0.0)
    return found


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
