"""A user's function as a subscriber of a topic: a job that is kept alive, whose program calls it
for each record (`holdfast.topics.subscriber`)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict

from holdfast.wire.errors import Missing, Usage
from holdfast.wire.limits import JOB_NAME_CHARACTERS_MAX

if TYPE_CHECKING:
    from holdfast.client.opening import Opened
    from holdfast.client.submitting import JobDraft

PROGRAM: Final = "holdfast.topics.subscriber"
_WORKERS_MAX: Final = 1_000


class SubscribeOptions(TypedDict, total=False):
    """What may be said of a subscription besides topic, function and group."""

    name: str | None
    workers: int
    tries: int | None
    dead: str
    start: str
    codec: str
    filter: str
    cpu: float | None
    memory: str | None
    queue: str | None


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """What `holdfast subscribe` is given. `run`: `FILE.py:FUNCTION`, whose folder is its code."""

    topic: str
    run: str
    group: str
    name: str | None = None
    workers: int = 1
    tries: int | None = None
    dead: str = ""
    start: str = "earliest"
    codec: str = "json"
    filter: str = ""
    cpu: float | None = None
    memory: str | None = None
    queue: str | None = None


def draft_of(request: SubscribeRequest) -> JobDraft:
    """The job that keeps the function subscribed; nothing is asked of a cluster."""
    from holdfast.client import scripts
    from holdfast.client.submitting import JobDraft
    from holdfast.control.decide.spec import JobSpec, Mode
    from holdfast.control.store import layout

    file, _, function = request.run.rpartition(":")
    path = Path(file).expanduser().absolute()
    if not file.endswith(".py") or not function.isidentifier():
        raise Usage(f"{request.run!r} is not FILE.py:FUNCTION", fix="--run handler.py:fn")
    if not path.is_file():
        raise Missing(f"there is no file {path}", fix="look at its name: --run handler.py:fn")
    if not 1 <= request.workers <= _WORKERS_MAX:
        raise Usage(
            f"{request.workers} workers", why=f"from 1 to {_WORKERS_MAX}", fix="--workers 2"
        )
    if request.tries is not None and request.tries < 1:
        raise Usage(
            f"{request.tries} tries", why="a record is tried once at least", fix="--tries 5"
        )
    if request.filter:
        from holdfast.wire.record_filter import parse_filter

        parse_filter(request.filter)
    words = ["python", "-m", PROGRAM, "--topic", request.topic, "--group", request.group]
    words += ["--run", f"{path.name}:{function}", "--start", request.start]
    words += ["--codec", request.codec]
    words += ["--tries", str(request.tries)] if request.tries is not None else []
    words += ["--dead", request.dead] if request.dead else []
    words += ["--filter", request.filter] if request.filter else []
    spec = JobSpec(
        layout.check_name("job", request.name or name_of(request.group)),
        tuple(words),
        bundle=".",
        queue=request.queue or "default",
        workers_min=request.workers,
        workers_max=request.workers,
        resources=scripts.resources_of(request.cpu, request.memory, 0, None),
        mode=Mode.SERVE,
    )
    return JobDraft(spec, path.parent)


def name_of(group: str) -> str:
    """The name of the job of this group."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", group)
    return f"subscribe.{plain}"[:JOB_NAME_CHARACTERS_MAX]


def prepare(found: Opened, draft: JobDraft) -> bool:
    """See to it that there are topics, and that the name is free or its job can be updated; whether
    it is there."""
    from holdfast.cluster import topics

    topics.wanted(found.session)
    try:
        known = found.plane.job(draft.spec.name)
    except Missing:
        return False
    if known.status.phase.final:
        found.plane.remove(draft.spec.name)
        return False
    return True
