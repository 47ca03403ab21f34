"""Where what the workers of a queue share lies in the plane, and who holds it.

    /holdfast/shared/<queue>/locks/<name>/...        a queue of contenders (`locks.Lock`)
    /holdfast/shared/<queue>/semaphores/<name>/...   a queue of contenders (`locks.Semaphore`)
    /holdfast/shared/<queue>/config/<name>           a value (`config.Config`)

Not under the queue's own node: a queue that nobody has made, or that is removed, has jobs too.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.coordination.config import Config
from holdfast.coordination.contenders import Contender, ContenderQueue
from holdfast.coordination.locks import Lock, Semaphore, count_of, split
from holdfast.wire.errors import HoldfastError, Usage
from holdfast.wire.sharing import LOCK, SEMAPHORE, Want, check_name

if TYPE_CHECKING:
    from typing import Any

    from holdfast.coordination.session import Session

# A watched value goes to every worker that follows it, in one message.
SHARED_VALUE_BYTES_MAX: Final = 64 * 1024

SHARED: Final = "/holdfast/shared"
Recipe = Lock | Semaphore
_FOLDERS: Final = {LOCK: "locks", SEMAPHORE: "semaphores"}


@dataclass(frozen=True, slots=True)
class LockUse:
    """A lock or semaphore that somebody holds or waits for. `count`: how many may hold it."""

    queue: str
    kind: str
    name: str
    count: int
    holders: tuple[Contender, ...]
    waiters: tuple[Contender, ...]


def recipe(session: Session, queue: str, want: Want, holder: str) -> Recipe:
    """The lock or the semaphore that is wanted, within the queue."""
    under = f"{SHARED}/{check_name('queue', queue)}/{_FOLDERS[want.kind]}"
    if want.kind == SEMAPHORE:
        return Semaphore(session, want.name, want.count, holder, under)
    return Lock(session, want.name, holder, under)


def tidy(session: Session, path: str) -> None:
    """Remove the node of a lock if nobody is in its queue: names may be many."""
    with suppress(HoldfastError):  # somebody is, or the plane is away: then it stays
        session.nodes.delete(path)


def config(session: Session, queue: str, name: str) -> Config:
    """A watched value of the queue."""
    return Config(session, _config_path(queue, name))


def put(session: Session, queue: str, name: str, value: Any) -> int:
    """Set a watched value; its version. `Usage`: it is too large."""
    made = config(session, queue, name)
    size = len(json.dumps(value).encode())
    if size > SHARED_VALUE_BYTES_MAX:
        raise Usage(
            f"the value {name} has {size} bytes",
            why=f"at most {SHARED_VALUE_BYTES_MAX} go to every worker that follows it",
            fix="put it into a blob or a file, and its name here",
        )
    return made.put(value)


def remove(session: Session, queue: str, name: str) -> bool:
    """Remove a watched value; False: there was none."""
    return session.nodes.delete(_config_path(queue, name))


def names(session: Session, queue: str) -> list[str]:
    """The watched values of the queue."""
    return sorted(session.nodes.children(f"{SHARED}/{check_name('queue', queue)}/config"))


def holdings(session: Session, queue: str | None = None) -> list[LockUse]:
    """What is held or waited for, in this queue or in all."""
    children = session.nodes.children
    queues = sorted(children(SHARED, fresh=True)) if queue is None else [check_name("queue", queue)]
    found = []
    for one in queues:
        for kind, folder in _FOLDERS.items():
            under = f"{SHARED}/{one}/{folder}"
            for name in sorted(children(under, fresh=True)):
                contenders = ContenderQueue(session, f"{under}/{name}", name).contenders()
                if contenders:
                    holders, waiters = split(contenders)
                    count = count_of(contenders[0].kind) or 1
                    found.append(LockUse(one, kind, name, count, tuple(holders), tuple(waiters)))
    return found


def _config_path(queue: str, name: str) -> str:
    return f"{SHARED}/{check_name('queue', queue)}/config/{check_name('value', name)}"
