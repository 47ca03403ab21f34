"""The one tree of errors.

Three branches answer the only question a caller has: may I try again?

- `RetryError`: yes, the same call may succeed later.
- `TerminalError`: no, somebody has to change something first.
- `BugError`: an invariant of ours is broken; trying again would make it worse.

Every message says what happened, why, and the command that fixes it. `story` carries the last
events of the thing that failed.
"""

from __future__ import annotations

from collections.abc import Sequence


class HoldfastError(Exception):
    """Whatever Holdfast raises on purpose. `exit_code` is what the command line ends with."""

    exit_code = 1

    def __init__(
        self, what: str, *, why: str = "", fix: str = "", story: Sequence[str] = ()
    ) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.fix = fix
        self.story = tuple(story)

    @property
    def sentence(self) -> str:
        """What happened and why, for where there is room for one line."""
        return f"{self.what}: {self.why}" if self.why else self.what

    def __str__(self) -> str:
        parts = [self.what]
        if self.why:
            parts.append(f"why: {self.why}")
        if self.fix:
            parts.append(f"fix: {self.fix}")
        parts.extend(f"  - {event}" for event in self.story)
        return "\n".join(parts)


class RetryError(HoldfastError):
    """The same call may succeed later; nothing was decided."""

    exit_code = 75


class Unavailable(RetryError):
    """The other side cannot be reached now; whether it acted is not known."""


class PeerLost(Unavailable):
    """A member of the view is gone, cannot be reached, or meets the others elsewhere by now.
    `peer`: which one, if it is known; `suspect`: it has not said a word for too long."""

    def __init__(
        self, what: str, *, why: str = "", peer: int | None = None, suspect: bool = False
    ) -> None:
        super().__init__(what, why=why, fix="meet again: the next view says who is there")
        self.peer = peer
        self.suspect = suspect


class GpuFault(Unavailable):
    """A GPU has failed, or has computed something wrong. Another one computes the same."""


class TimedOut(RetryError):
    """The wait ended before what it waited for came."""


class Cancelled(RetryError):
    """The caller's own side called the wait off."""


class Full(RetryError):
    """A bounded thing (queue, disk) has no room now."""


class NotHere(RetryError):
    """This replica does not hold the version (yet, or any more); another one may."""


class TerminalError(HoldfastError):
    """Trying again will not help until somebody changes something."""


class Usage(TerminalError):
    """The command or the argument is wrong."""

    exit_code = 2


class TooLarge(Usage):
    """A request is larger than its service takes."""


class Missing(TerminalError):
    """What was asked for is not there."""


class MissingExtra(TerminalError):
    """A package that this command needs is not installed."""


class Corrupt(TerminalError):
    """Bytes on disk are not those that were written."""


class DiskFailed(TerminalError):
    """The disk did not keep what it was given: nothing more may be acknowledged."""


class Conflict(TerminalError):
    """Somebody else changed it first; read it again and decide again."""


class Fenced(TerminalError):
    """The caller's term or token is older than the current one: it must stop acting."""


class SessionLost(TerminalError):
    """The session ended, and with it everything that it held."""


class Refused(TerminalError):
    """The other side understood and said no: permission, version, credentials."""


class Occupied(TerminalError):
    """An address or a folder is in use by another process."""

    exit_code = 11


class JobFailed(TerminalError):
    """A job that was waited for has failed, or was stopped; `why` is its cause."""


class BadModel(TerminalError):
    """A version's code or files do not do what its record says: it cannot be loaded or served."""


class ModelFailed(TerminalError):
    """The model itself failed on a request; `what` has its own words."""


class BugError(HoldfastError):
    """An invariant of Holdfast is broken. Please report it with its story."""

    exit_code = 70
