"""Where the facts of jobs lie in the coordination plane, and reading one job from there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast.control.decide.facts import JobRecord
from holdfast.control.store import codec
from holdfast.coordination import Fact, Facts, stamps
from holdfast.wire.errors import Corrupt, Usage
from holdfast.wire.limits import NAME_CHARACTERS_MAX
from holdfast.wire.names import AUDIT_NAME, JOBS_PATH, QUEUES_PATH, SECRETS_PATH

ROOT: Final = "/holdfast"
LEADER: Final = f"{ROOT}/leader"
NODES: Final = f"{ROOT}/nodes"
QUEUES: Final = QUEUES_PATH
DRAINING: Final = f"{ROOT}/draining"
SECRETS: Final = SECRETS_PATH
JOBS: Final = JOBS_PATH

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

# The nodes of a job below its own: those of its users, and those that only the leader changes.
WATCHED: Final = ("settings",)
PARTS: Final = ("state", "view", "placements/*", "checkpoints/*")


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


def audit_path(job: str) -> str:
    """What its users asked, in words."""
    return f"{JOBS}/{job}/{AUDIT_NAME}"


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
class StoredJob:
    """A job as it was read: its value, its submission, and the version of each of its nodes."""

    job: JobRecord
    submission: str
    versions: Mapping[str, int]


def read_job(facts: Facts, name: str) -> StoredJob | None:
    """The job, or None if there is none (any more). Each node is read at some moment since the call
    began."""
    top = job_path(name)
    paths = [top, *(f"{top}/{part}" for part in (*WATCHED, *PARTS) if not part.endswith("/*"))]
    for folder in (part.removesuffix("/*") for part in PARTS if part.endswith("/*")):
        paths += [f"{top}/{folder}/{child}" for child in facts.names(f"{top}/{folder}")]
    found = facts.read_all(paths)
    try:
        return job_from(top, found) if top in found else None
    except Corrupt:
        if facts.read(top, fresh=True) is None:
            return None  # it was removed while we read
        raise


def job_from(path: str, found: Mapping[str, Fact]) -> StoredJob:
    """The job whose nodes these are. For the leader they are of one moment: those that are not its
    users' change by its own hand only."""
    name = path.rpartition("/")[2]
    if state_path(name) not in found or settings_path(name) not in found:
        raise _half(name)
    desired = codec.desired_spec_from(path, plain(path, found))
    view = found.get(view_path(name))
    job = codec.job_of(
        desired,
        codec.state_from(state_path(name), found[state_path(name)].data),
        view=codec.view_from(view_path(name), view.data) if view else None,
        placements=[
            placement
            for page in _numbers(found, placements_path(name))
            for placement in codec.placements_from(page, found[page].data)
        ],
        checkpoints=[
            codec.checkpoint_from(step, found[step].data)
            for step in _numbers(found, checkpoints_path(name))
        ],
        settings=codec.settings_from(settings_path(name), plain(settings_path(name), found)),
    )
    if job.name != name:
        raise Corrupt(
            f"{path} holds job {job.name!r}",
            why="a job lies under its own name",
            fix="restore the node from a backup",
        )
    return StoredJob(job, desired.submission, {one: fact.version for one, fact in found.items()})


def plain(path: str, found: Mapping[str, Fact]) -> Any:
    """The value of a node that users write, without the marks of its writers."""
    return stamps.decoded(path, found[path].data).value


def _numbers(found: Mapping[str, Fact], folder: str) -> list[str]:
    """The paths of what lies in this folder, by number."""
    paths = [path for path in found if path.startswith(f"{folder}/")]
    strange = [path for path in paths if not path.rpartition("/")[2].isdecimal()]
    if strange:
        raise Corrupt(
            f"{folder} has children that are not numbers: {strange[:5]}",
            why="somebody else wrote there",
            fix="remove them",
        )
    return sorted(paths, key=lambda path: int(path.rpartition("/")[2]))


def _half(name: str) -> Corrupt:
    return Corrupt(
        f"job {name} has lost its state or its settings",
        why="a job is made and removed as a whole, so somebody else removed a part of it",
        fix="restore the nodes from a backup",
    )
