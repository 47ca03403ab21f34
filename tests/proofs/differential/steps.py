"""What a client can do, as values: a step is the same bytes for both servers."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.coordination.embedded import protocol as p

NAMES = {
    value: name.lower()
    for name, value in vars(p).items()
    if isinstance(value, int)
    and not name.startswith(
        ("XID_", "EVENT_", "STATE_", "PERM_", "FLAG_", "WATCH_", "WATCHER_", "ERROR_")
    )
    and (value > 0 or value in (p.CLOSE_SESSION, p.CREATE_SESSION))
}
RESERVED_XIDS = {
    p.PING: p.XID_PING,
    p.AUTH: p.XID_AUTH,
    p.SET_WATCHES: p.XID_SET_WATCHES,
    p.SET_WATCHES2: p.XID_SET_WATCHES,
}


class Call(NamedTuple):
    """One request, without its xid. `text` is for people."""

    op: int
    body: bytes
    text: str

    def __str__(self) -> str:
        return f"{NAMES.get(self.op, f'operation {self.op}')} {self.text}".rstrip()


class Talk(NamedTuple):
    """A client sends its calls in one go and reads the replies: one call, or a burst."""

    client: int
    calls: tuple[Call, ...]

    def __str__(self) -> str:
        return f"client {self.client}: " + " | ".join(str(call) for call in self.calls)


class Open(NamedTuple):
    """A client without a session begins one."""

    client: int
    timeout_ms: int
    read_only: bool | None

    def __str__(self) -> str:
        return f"client {self.client}: open, {self.timeout_ms} ms, read only {self.read_only}"


class Resume(NamedTuple):
    """A client comes back with its session; an open connection of it is left standing.

    `password` may be wrong, and `zxid_ahead` tells the server of a future that it does not know.
    """

    client: int
    right_password: bool
    zxid_ahead: int

    def __str__(self) -> str:
        password = "right" if self.right_password else "wrong"
        return f"client {self.client}: resume, {password} password, zxid +{self.zxid_ahead}"


class Drop(NamedTuple):
    """A client's connection breaks; its session lives on."""

    client: int

    def __str__(self) -> str:
        return f"client {self.client}: drop the connection"


class Visit(NamedTuple):
    """Somebody else opens a session with an odd time-out and closes it at once."""

    timeout_ms: int
    read_only: bool | None

    def __str__(self) -> str:
        return f"visitor: open with {self.timeout_ms} ms and close"


Step = Talk | Open | Resume | Drop | Visit


def requests_in(step: Step) -> int:
    """How many operations a step counts for."""
    return len(step.calls) if isinstance(step, Talk) else 1


def closes_session(step: Step) -> bool:
    return isinstance(step, Talk) and step.calls[-1].op == p.CLOSE_SESSION
