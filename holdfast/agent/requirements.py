"""What a job's `requirements` mean, and which environments stay: all that is decided about them.

The lock of a job is its requirements as pip reads them, with the files that they name put in their
place. Jobs with the same lock share an environment of a machine; its name is the lock's key. What
lies in the job's own folder is named by its bundle, so a changed file there is another lock.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import sysconfig
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.wire.errors import Refused
from holdfast.wire.orders import StartWorker

# Files of requirements that name each other, and all that stands in them: a lock of some hundred
# packages with a hash of each of their files has a megabyte.
REQUIREMENT_FILES_MAX: Final = 50
JOB_REQUIREMENTS_BYTES_MAX: Final = 8 * 1024 * 1024
# Environments that nobody has used for so long are removed, and beyond these bounds those that were
# used longest ago: one with another torch has five gigabytes.
ENVIRONMENT_UNUSED_S: Final = 30 * 86_400.0
ENVIRONMENTS_KEPT: Final = 20
ENVIRONMENTS_BYTES_MAX: Final = 50 * 1024**3
# One that was given a moment ago may not be known to be in use yet.
ENVIRONMENT_FRESH_S: Final = 60.0

FAILED: Final = "the environment could not be made"  # `wire.causes` knows it
_COMMENT: Final = re.compile(r"(^|\s+)#.*$")
_NAMES_FILE: Final = re.compile(r"(?:-r|--requirement|-c|--constraint)(?:\s+|=)\s*(\S.*)")
_FIND_LINKS: Final = re.compile(r"(?:-f|--find-links)(?:\s+|=)\s*(\S.*)")
_OPTION: Final = re.compile(r"--?[a-z-]+(?:\s+|=)")
_ARCHIVE: Final = re.compile(r"\.(?:whl|zip|tar\.\w+|tgz)$")
_SHOWN_CHARACTERS: Final = 80
_KEY_CHARACTERS: Final = 32  # half of a sha256: the first line of a script has room for few more
# What of a job's own environment says what pip gets where.
_PIP_VARIABLES: Final = "PIP_"


class CannotPrepare(Refused):
    """There is no environment for this job, and trying again would not help. `what` has the last
    lines of whatever failed, and then one line for people."""


@dataclass(frozen=True, slots=True)
class RequirementsLock:
    """What is to be installed: the lines for pip, and those that only bound versions. `local`: some
    of it lies in the job's own folder. `key`: the name of its environment."""

    lines: tuple[str, ...]
    constraints: tuple[str, ...]
    local: bool
    key: str

    @property
    def doing(self) -> str:
        """What is done to make it, for people."""
        named = " ".join(line for line in self.lines if not line.startswith("-"))
        short = named if len(named) <= _SHOWN_CHARACTERS else f"{named[:_SHOWN_CHARACTERS]}…"
        return f"preparing the environment: pip install {short}"


def lock_of(order: StartWorker, bundle: Path | None) -> RequirementsLock:
    """The lock of this worker's job. `CannotPrepare`: a file that it names is not in its bundle.
    Reads files; may block."""
    reading = _Reading(bundle)
    reading.take(order.requirements, Path(), reading.lines)
    lines, constraints = tuple(reading.lines), tuple(reading.constraints)
    local = any(map(is_local, (*lines, *constraints)))
    pip = [f"{k}={v}" for k, v in sorted(order.environment.items()) if k.startswith(_PIP_VARIABLES)]
    # What one user has built is not run by another.
    parts = [*lines, "", *constraints, "", *pip, order.user, order.bundle if local else ""]
    parts += [sys.version, sysconfig.get_platform(), sys.prefix]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:_KEY_CHARACTERS]
    return RequirementsLock(lines, constraints, local, key)


def normalised(lines: Iterable[str]) -> list[str]:
    """The lines as pip understands them: without comments and empty ones, continued ones joined."""
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    found = (" ".join(_COMMENT.sub("", line).split()) for line in joined.splitlines())
    return [line for line in found if line]


def is_local(line: str) -> bool:
    """Whether the line names something in a folder, rather than at an index."""
    option = _OPTION.match(line)
    named = line[option.end() :] if option else line.partition(" @ ")[2] or line
    first = named.split()[0] if named.split() else ""
    if "://" in first and not first.startswith("file:"):
        return False
    if option:
        return line.startswith(("-f", "--find-links", "-e", "--editable"))
    return first.startswith((".", "file:")) or "/" in first or bool(_ARCHIVE.search(first))


@dataclass(slots=True)
class _Reading:
    """Puts the files that requirements name in their place."""

    top: Path | None
    lines: list[str] = field(default_factory=list)
    constraints: list[str] = field(default_factory=list)
    files: int = 0
    size: int = 0

    def take(self, lines: Iterable[str], folder: Path, into: list[str]) -> None:
        for line in normalised(lines):
            named = _NAMES_FILE.fullmatch(line)
            if named is None or "://" in named[1]:
                into.append(self._linked(line, folder))
            else:
                bounds = line.startswith(("-c", "--constraint"))
                path = Path(os.path.normpath(folder / named[1].strip("\"'")))
                below = self.constraints if bounds else into
                self.take(self._read(path), path.parent, below)

    def _linked(self, line: str, folder: Path) -> str:
        """The line, with a folder of links seen from the top: pip looks for it beside the file that
        names it, if it is there."""
        links = _FIND_LINKS.fullmatch(line)
        if links is None or self.top is None or "://" in links[1]:
            return line
        path = os.path.normpath(folder / links[1].strip("\"'"))
        inside = not path.startswith(("/", "..")) and (self.top / path).exists()
        return f"--find-links ./{path}" if inside else line

    def _read(self, path: Path) -> list[str]:
        self.files += 1
        if self.files > REQUIREMENT_FILES_MAX:
            raise CannotPrepare(
                f"{FAILED}: its requirements name more than {REQUIREMENT_FILES_MAX} files; do they"
                " name each other? put them into one"
            )
        if self.top is None or path.is_absolute() or path.parts[:1] == ("..",):
            raise _not_there(path, "it is looked for in the job's bundle, and nowhere else")
        try:
            text = (self.top / path).read_text(errors="replace")
        except OSError as error:
            raise _not_there(path, os.strerror(error.errno or 0)) from None
        self.size += len(text)
        if self.size > JOB_REQUIREMENTS_BYTES_MAX:
            raise CannotPrepare(
                f"{FAILED}: its requirements have more than {JOB_REQUIREMENTS_BYTES_MAX} bytes;"
                " name what the job imports, and pip finds what that needs"
            )
        return text.splitlines()


def _not_there(path: Path, why: str) -> CannotPrepare:
    return CannotPrepare(
        f"{FAILED}: {path}, which `requirements` names, is not in the job's bundle ({why}): put it"
        " beside the job file, with the line `bundle: .` in that"
    )


class Made(NamedTuple):
    """An environment that is there."""

    key: str
    used_s: float  # when it was last given to a worker
    size_bytes: int


def surplus(there: Sequence[Made], in_use: Collection[str], now_s: float) -> list[str]:
    """The environments that go: those that nobody has used for long, and beyond the bounds those
    that were used longest ago. Never one that a worker has, or got a moment ago."""
    gone = []
    kept, size = 0, 0
    for made in sorted(there, key=lambda made: (made.key not in in_use, -made.used_s, made.key)):
        kept, size = kept + 1, size + made.size_bytes
        if made.key in in_use or now_s - made.used_s < ENVIRONMENT_FRESH_S:
            continue
        old = now_s - made.used_s > ENVIRONMENT_UNUSED_S
        if old or kept > ENVIRONMENTS_KEPT or size > ENVIRONMENTS_BYTES_MAX:
            gone.append(made.key)
            kept, size = kept - 1, size - made.size_bytes
    return gone
