"""Where the facts of jobs lie in the coordination plane, and reading one job from there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast.control import codec
from holdfast.control.facts import Job
from holdfast.coordination import Fact, Facts, stamps
from holdfast.coordination.waits import Wake
from holdfast.wire.errors import Corrupt, Usage
from holdfast.wire.limits import NAME_CHARACTERS_MAX
from holdfast.wire.places import JOBS_PATH, QUEUES_PATH, SECRETS_PATH

ROOT: Final = "/holdfast"
LEADER: Final = f"{ROOT}/leader"
NODES: Final = f"{ROOT}/nodes"
QUEUES: Final = QUEUES_PATH
DRAINING: Final = f"{ROOT}/draining"
SECRETS: Final = SECRETS_PATH
JOBS: Final = JOBS_PATH

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

Wakes = Callable[[str], Wake | None]
"""For a path of the users: who is woken when it changes."""


def nobody(_path: str) -> Wake | None:
    return None


def job_path(job: str) -> str:
    return f"{JOBS}/{job}"


def state_path(job: str) -> str:
    return f"{JOBS}/{job}/state"


def view_path(job: str) -> str:
    return f"{JOBS}/{job}/view"


def settings_path(job: str) -> str:
    return f"{JOBS}/{job}/settings"


def placements_path(job: str) -> str:
    return f"{JOBS}/{job}/placements"


def page_path(job: str, page: int) -> str:
    return f"{JOBS}/{job}/placements/{page}"


def checkpoints_path(job: str) -> str:
    return f"{JOBS}/{job}/checkpoints"


def checkpoint_path(job: str, step: int) -> str:
    """The commit record of that step. Its existence IS the commit."""
    return f"{JOBS}/{job}/checkpoints/{step}"


def history_path(job: str) -> str:
    return f"{JOBS}/{job}/history"


def asked_path(job: str) -> str:
    """What its users asked, in words."""
    return f"{JOBS}/{job}/asked"


def queue_path(queue: str) -> str:
    return f"{QUEUES}/{queue}"


def secret_path(secret: str) -> str:
    return f"{SECRETS}/{secret}"


def check_name(what: str, name: str) -> str:
    """The name, if it can be part of a path and of a folder's name; else `Usage`."""
    if len(name) > NAME_CHARACTERS_MAX or not _NAME.fullmatch(name):
        raise Usage(
            f"{name[:80]!r} cannot be the name of a {what}",
            why=f"a name has at most {NAME_CHARACTERS_MAX} letters, digits, '.', '_' and '-'",
            fix="choose another name",
        )
    return name


@dataclass(frozen=True, slots=True)
class Filed:
    """A job as it was read: its value, its submission, and the version of each of its nodes."""

    job: Job
    submission: str
    versions: Mapping[str, int]


def read_job(facts: Facts, name: str, wakes: Wakes = nobody) -> Filed | None:
    """The job, or None if there is none (any more).

    Each node is read at some moment since the call began. For the leader that is one moment: the
    nodes that are not its users' change by its own hand only.
    """
    mine = [job_path(name), settings_path(name)]
    own = [state_path(name), view_path(name)]
    pages = [page_path(name, int(page)) for page in _numbers(facts, placements_path(name))]
    steps = [checkpoint_path(name, step) for step in _numbers(facts, checkpoints_path(name))]
    waking = {path: wake for path in mine if (wake := wakes(path)) is not None}
    found = facts.read_all([*mine, *own, *pages, *steps], waking)
    if job_path(name) not in found:
        return None
    if state_path(name) not in found or settings_path(name) not in found:
        if facts.read(job_path(name), fresh=True) is None:
            return None  # it was removed while we read
        raise _half(name)
    wish = codec.wish_from(job_path(name), plain(job_path(name), found))
    view = found.get(view_path(name))
    job = codec.job_of(
        wish,
        codec.state_from(state_path(name), found[state_path(name)].data),
        view=codec.view_from(view_path(name), view.data) if view else None,
        placements=[
            placement
            for path in pages
            if path in found
            for placement in codec.placements_from(path, found[path].data)
        ],
        checkpoints=[
            codec.checkpoint_from(path, found[path].data) for path in steps if path in found
        ],
        settings=codec.settings_from(settings_path(name), plain(settings_path(name), found)),
    )
    if job.name != name:
        raise Corrupt(
            f"{job_path(name)} holds job {job.name!r}",
            why="a job lies under its own name",
            fix="restore the node from a backup",
        )
    return Filed(job, wish.submission, {path: fact.version for path, fact in found.items()})


def plain(path: str, found: Mapping[str, Fact]) -> Any:
    """The value of a node that users write, without the marks of its writers."""
    return stamps.decoded(path, found[path].data).value


def _numbers(facts: Facts, path: str) -> Iterable[int]:
    names = facts.names(path)
    strange = [name for name in names if not name.isdecimal()]
    if strange:
        raise Corrupt(
            f"{path} has children that are not numbers: {strange[:5]}",
            why="somebody else wrote there",
            fix="remove them",
        )
    return sorted(int(name) for name in names)


def _half(name: str) -> Corrupt:
    return Corrupt(
        f"job {name} has lost its state or its settings",
        why="a job is made and removed as a whole, so somebody else removed a part of it",
        fix="restore the nodes from a backup",
    )
