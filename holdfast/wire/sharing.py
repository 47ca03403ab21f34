"""What a worker and its agent say of what the worker shares with others: locks and values.

    worker   {"shared": {"serial", "follows": [name, ...],
                         "wants": [{"id", "kind", "name", "count", "until_s", "token"}, ...]}}
    agent    {"shared": {id: {"state", "token", "sure_s", "over_s", "error"}, ...}}
             {"config": {"name", "value", "version", "error"}}

Levels, as all that travels there: a worker says everything that it wants to hold, and what it does
not name any more is given back. So a message that is lost with a connection is made good by the
next one, and an agent that was started anew hears from each worker what it believes to hold. One
with a smaller serial than the last is late, and means nothing.

Times are of the machine's clock (`system.clock`), which a worker and its agent have in common.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, NamedTuple

from holdfast.wire import errors, worker_messages
from holdfast.wire.errors import HoldfastError, Unavailable, Usage
from holdfast.wire.limits import NAME_CHARACTERS_MAX
from holdfast.wire.plain import known_fields

# Holders of one semaphore: whoever waits reads the names of all of them.
SHARED_SEMAPHORE_MAX: Final = 1_000

SHARED: Final = "shared"
CONFIG: Final = "config"
LOCK: Final = "lock"
SEMAPHORE: Final = "semaphore"

# States of a want.
WAITING: Final = "waiting"
HELD: Final = "held"
REFUSED: Final = "refused"
LOST: Final = "lost"

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Want:
    """Something that a worker wants to hold, or believes to hold (then it names the token).
    `until_s`: it does not wait any longer; None: for ever."""

    id: int
    kind: str
    name: str
    count: int = 1
    until_s: float | None = None
    token: int | None = None


@dataclass(frozen=True, slots=True)
class WantState:
    """What has become of a want. Held: certainly until `sure_s`, and not known to be over before
    `over_s`, whatever happens to the agent."""

    state: Literal["waiting", "held", "refused", "lost"]
    token: int = 0
    sure_s: float = 0.0
    over_s: float = 0.0
    error: HoldfastError | None = None


@dataclass(frozen=True, slots=True)
class SharedValue:
    """A watched value and its version; -1: there is none. Or why it cannot be followed."""

    name: str
    value: Any
    version: int
    error: HoldfastError | None = None


class Wants(NamedTuple):
    """All that a worker wants, as it said it for the `serial`th time."""

    serial: int
    wants: list[Want]
    follows: list[str]


def check_name(what: str, name: object) -> str:
    """The name, if it can be one of what workers share; else `Usage`."""
    if not isinstance(name, str) or len(name) > NAME_CHARACTERS_MAX or not _NAME.fullmatch(name):
        raise Usage(
            f"{str(name)[:80]!r} cannot be the name of a {what}",
            why=f"a name has at most {NAME_CHARACTERS_MAX} letters, digits, '.', '_' and '-'",
            fix="choose another name",
        )
    return name


def check_count(name: str, count: object) -> int:
    """How many may hold a semaphore at once; else `Usage`."""
    if not isinstance(count, int) or not 1 <= count <= SHARED_SEMAPHORE_MAX:
        raise Usage(
            f"a semaphore {name!r} for {count!r} holders",
            why=f"it has 1 to {SHARED_SEMAPHORE_MAX}",
            fix=f"run.semaphore({name!r}, 3)",
        )
    return count


def wants_line(serial: int, wants: Iterable[Want], follows: Iterable[str]) -> bytes:
    said = {"wants": [asdict(want) for want in wants], "follows": sorted(follows)}
    return worker_messages.line(SHARED, {"serial": serial, **said})


def wants_from(body: Mapping[str, Any]) -> Wants:
    """What `wants_line` was given. `KeyError`, `TypeError`, `ValueError` or `Usage`: it is not."""
    wants = []
    for fields in body["wants"]:
        want = Want(**known_fields(Want, fields))
        if want.kind not in (LOCK, SEMAPHORE) or not isinstance(want.id, int):
            raise ValueError(f"{fields!r:.100} is not something to hold")
        check_name(want.kind, want.name)
        check_count(want.name, want.count)
        for time_s in (want.until_s, want.token):
            if time_s is not None and not isinstance(time_s, (int, float)):
                raise TypeError(f"{time_s!r:.100} is not a number")
        wants.append(want)
    follows = [check_name("value", name) for name in body["follows"]]
    return Wants(int(body["serial"]), wants, follows)


def want_states_line(standings: Mapping[int, WantState]) -> bytes:
    return worker_messages.line(
        SHARED, {str(number): _plain(one) for number, one in standings.items()}
    )


def _plain(one: WantState) -> dict[str, Any]:
    times = {"sure_s": one.sure_s, "over_s": one.over_s}
    return {"state": one.state, "token": one.token, **times, "error": _plain_error(one.error)}


def _plain_error(error: HoldfastError | None) -> dict[str, str] | None:
    if error is None:
        return None
    kind = type(error).__name__
    return {"kind": kind, "what": error.what, "why": error.why, "fix": error.fix}


def want_states_from(body: Mapping[str, Any]) -> dict[int, WantState]:
    return {
        int(number): WantState(
            fields["state"],
            int(fields["token"]),
            float(fields["sure_s"]),
            float(fields["over_s"]),
            _error(fields["error"]),
        )
        for number, fields in body.items()
    }


def _error(said: Mapping[str, str] | None) -> HoldfastError | None:
    """The error of this kind; one that is not known here may be tried again."""
    if said is None:
        return None
    kind = getattr(errors, said["kind"], Unavailable)
    if not isinstance(kind, type) or not issubclass(kind, HoldfastError):
        kind = Unavailable
    return kind(said["what"], why=said["why"], fix=said["fix"])


def value_line(value: SharedValue) -> bytes:
    known = {"name": value.name, "value": value.value, "version": value.version}
    return worker_messages.line(CONFIG, {**known, "error": _plain_error(value.error)})


def value_from(body: Mapping[str, Any]) -> SharedValue:
    return SharedValue(
        str(body["name"]), body["value"], int(body["version"]), _error(body["error"])
    )
