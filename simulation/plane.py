"""The coordination plane: the real tree and the real table of sessions, behind a connection that
breaks.

A request goes to the plane and a reply comes back; either may be lost, and then the client does
not know whether it was carried out (None). Requests of one client arrive in the order in which it
sent them. Watches are levels: a change wakes those who care, and carries nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from holdfast.coordination.embedded import protocol as p
from holdfast.coordination.embedded.acl import OPEN
from holdfast.coordination.embedded.sessions import SessionTable
from holdfast.coordination.embedded.transactions import (
    CloseSession,
    Create,
    FailedOperation,
    OpenSession,
    Operation,
    Outcome,
    TreeEvent,
    WriteTransaction,
)
from holdfast.coordination.embedded.tree import Tree
from holdfast.wire.errors import BugError
from simulation.faults import Faults
from simulation.flow import Wait
from simulation.kernel import Action, Kernel, SimulatedProcess
from simulation.network import Network

TICK_MS: Final = 250
SESSION_MS: Final = 1_200
# When a client gives up waiting for a reply and connects again.
HANG_UP_S: Final = 0.5
SWEEP_S: Final = 0.3

Reader = Callable[[Tree], Any]
Observer = Callable[[WriteTransaction, Outcome], None]


class Client:
    """One process's connection. `wake` is called, coalesced, after something has happened that it
    `watches`; `lost`, once it can be told, when its session has ended."""

    def __init__(
        self, process: SimulatedProcess, machine: str, lost: Action, wake: Action = lambda: None
    ) -> None:
        self.process = process
        self.machine = machine
        self.lost = lost
        self.wake = wake
        self.watches: Callable[[TreeEvent], bool] | None = None
        self.session = 0
        self.heard = 0  # the last session of which it knows: a reply to `open` came
        self.opened = 0  # how often it has asked for a session; only the last one counts
        self.awaits = 0.0  # when its last request arrives: the next one does so after it
        self.woken = False


class Plane:
    """The server. `observers` see each transaction that was carried out, in order."""

    def __init__(self, kernel: Kernel, network: Network, faults: Faults) -> None:
        self._kernel = kernel
        self._network = network
        self._faults = faults
        self._sessions = SessionTable(TICK_MS)
        self._clients: dict[int, Client] = {}
        self._log: list[tuple[WriteTransaction, int, int]] = []
        self._values: list[object] = []
        self._last_session = 0
        self._sweeping = False
        self.tree = Tree()
        self.up = True
        self.observers: list[Observer] = []
        for path in ("/holdfast", "/holdfast/leader", "/holdfast/leader/candidates"):
            self.make(path)
        for path in ("/holdfast/leader/term", "/holdfast/nodes", "/holdfast/jobs"):
            self.make(path)

    # --- values: the bytes of a node name a value, which spares coding it ------------------------

    def keep(self, value: object) -> bytes:
        """The bytes that stand for `value` in a node."""
        self._values.append(value)
        return b"%d" % (len(self._values) - 1)

    def value(self, data: bytes | None) -> Any:
        """What `keep` was given."""
        assert data
        return self._values[int(data)]

    # --- what clients ask -----------------------------------------------------------------------

    def ask(self, client: Client, operation: Operation, session: int | None = None) -> Wait:
        """Carry out a write; the wait ends with its `Outcome`, or None if that is not known. Only
        in `session`, if given; otherwise in whichever the client has now."""
        session = client.session if session is None else session
        return self._round_trip(client, lambda: self._apply(session, operation))

    def read(self, client: Client, reader: Reader) -> Wait:
        """Read at one moment; None if no answer came, `p.SESSION_EXPIRED` if the session ended."""
        session = client.session
        return self._round_trip(
            client,
            lambda: reader(self.tree) if session in self._sessions else p.SESSION_EXPIRED,
        )

    def open(self, client: Client) -> Wait:
        """Begin a session, on a new connection; True, or None if no answer came."""
        life = client.process.life
        client.opened += 1
        opening = client.opened
        client.session = 0
        client.awaits = 0.0
        client.woken = False
        client.watches = None

        def opened() -> bool:
            self._last_session += 1
            session = self._last_session
            if client.process.life == life and client.opened == opening:
                client.session = session
            self._clients[session] = client
            self._sessions.open(session, SESSION_MS, self._now_ms())
            self._apply(session, OpenSession(SESSION_MS))
            # If its client is gone, or does not hear of it and asks again, it ends by itself.
            self._sweep_later()
            return True

        asking = self._round_trip(client, opened)

        def begin(go_on: Callable[[Any], None]) -> None:
            def answered(result: Any) -> None:
                if result and client.opened == opening:
                    client.heard = client.session
                go_on(result)

            asking(answered)

        return begin

    def close(self, client: Client) -> Wait:
        """End its own session; it is not told of an end that it asked for."""
        session, client.session = client.session, 0
        return self._round_trip(client, lambda: self.expire(session))

    def _round_trip(self, client: Client, serve: Callable[[], Any]) -> Wait:
        kernel, faults, process = self._kernel, self._faults, client.process
        life = process.life

        def begin(go_on: Callable[[Any], None]) -> None:
            if faults.strikes("request lost"):
                process.after(HANG_UP_S, lambda: go_on(None))
                return
            arrival = max(kernel.now_s + self._network.latency_s(), client.awaits)
            client.awaits = arrival
            kernel.after(arrival - kernel.now_s, lambda: served(go_on))

        def served(go_on: Callable[[Any], None]) -> None:
            network, machine = self._network, client.machine
            unreported = not self.up or machine in network.mute
            result = None if unreported else serve()
            back_s = HANG_UP_S
            if unreported or machine in network.deaf or faults.strikes("reply lost"):
                result = None
            else:
                back_s = kernel.between(0.001, 0.006)
            if process.life == life:
                process.after(back_s, lambda: go_on(result))

        return begin

    # --- the server's own -----------------------------------------------------------------------

    def make(self, path: str, data: bytes = b"") -> None:
        """A persistent node, made before anybody lives."""
        outcome = self._apply(0, Create(path, data, OPEN, p.FLAG_PERSISTENT, -1, False), True)
        assert outcome.error == p.OK, path

    def do(self, operation: Operation) -> Outcome:
        """A write by a user whose connection never breaks."""
        return self._apply(0, operation, True)

    def is_open(self, session: int) -> bool:
        return session in self._sessions

    def expire(self, session: int) -> None:
        """End a session though its client was heard of."""
        if session in self._sessions:
            self._sessions.close(session)
            self._end(session)

    def expect_silence(self, machine: str) -> None:
        """A machine or process may be silent from now on: look at its sessions when it is time."""
        now_ms = self._now_ms()
        for session, client in self._clients.items():
            if client.machine == machine:
                self._sessions.touch(session, now_ms)
        self._sweep_later()

    def fail(self, away_s: float) -> None:
        """The server dies, and is back after a while with what its log gives."""
        self.up = False
        self._kernel.after(away_s, self._recover)

    def _recover(self) -> None:
        self.up = True
        tree = Tree()
        for transaction, zxid, now_ms in self._log:
            tree.apply(transaction, zxid, now_ms)
        if (
            list(tree.nodes) != list(self.tree.nodes)
            or tree.sessions.keys() != self.tree.sessions.keys()
        ):
            raise BugError("the log gave another tree than the one it was written from")
        self.tree = tree
        # As the real server does: nobody could be heard, so everybody's time begins anew.
        self._sessions.refresh(self._now_ms())
        self._sweep_later()

    def _sweep_later(self) -> None:
        if not self._sweeping:
            self._sweeping = True
            self._kernel.after(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        """End silent sessions. Goes on as long as somebody is silent; nobody else can end."""
        self._sweeping = False
        if not self.up:
            return  # it begins again with the server
        now_ms = self._now_ms()
        for session, client in self._clients.items():
            if self._is_reachable(client, session):
                self._sessions.touch(session, now_ms)
        for session in self._sessions.expired(now_ms):
            self._end(session)
        if any(
            not self._is_reachable(client, session) for session, client in self._clients.items()
        ):
            self._sweep_later()

    def _is_reachable(self, client: Client, session: int) -> bool:
        process = client.process
        return (
            client.session == session
            and process.up
            and not process.stopped
            and client.machine not in self._network.mute
        )

    def _end(self, session: int) -> None:
        self._kernel.tell("plane", "ends session", session)
        self._apply(session, CloseSession())
        client = self._clients.pop(session)
        self._tell_of_end(client, session, client.process.life)

    def _tell_of_end(self, client: Client, session: int, life: int) -> None:
        """A client hears of the end of its session when it is heard again itself, and after it has
        heard of its beginning: one that never does asks for another one anyway."""
        if client.process.life != life or client.session != session:
            return
        if not self.up or client.machine in self._network.deaf:
            self._kernel.after(HANG_UP_S, lambda: self._tell_of_end(client, session, life))
            return

        def deliver() -> None:
            if client.session != session:
                return
            if client.heard == session:
                client.lost()
            else:
                self._kernel.after(HANG_UP_S, lambda: self._tell_of_end(client, session, life))

        client.process.after(self._kernel.between(0.001, 0.5), deliver)

    def _now_ms(self) -> int:
        return int(self._kernel.now_s * 1000)

    def _apply(self, session: int, operation: Operation, own: bool = False) -> Outcome:
        if own:
            # The tree wants a session for a write; the users' one is opened on the way.
            session = USERS
            if session not in self.tree.sessions:
                self._commit(WriteTransaction(session, (), OpenSession(SESSION_MS)))
        elif session in self._sessions:
            self._sessions.touch(session, self._now_ms())
        return self._commit(WriteTransaction(session, (), operation))

    def _commit(self, transaction: WriteTransaction) -> Outcome:
        zxid, now_ms = self.tree.last_zxid + 1, self._now_ms()
        self._log.append((transaction, zxid, now_ms))
        outcome = self.tree.apply(transaction, zxid, now_ms)
        for observer in self.observers:
            observer(transaction, outcome)
        if outcome.events:
            for session, client in self._clients.items():
                watches = client.watches
                if watches is None or client.woken or session != client.session:
                    continue
                if any(map(watches, outcome.events)):
                    self._wake(client)
        return outcome

    def _wake(self, client: Client) -> None:
        if client.process.up:
            client.woken = True
            self._tell_of_change(client, client.process.life)

    def _tell_of_change(self, client: Client, life: int) -> None:
        kernel, process = self._kernel, client.process
        if client.machine in self._network.deaf:
            self._remember_watch(client, life)
            return

        def deliver() -> None:
            client.woken = False
            if process.life == life:
                process.arrive(client.wake)

        kernel.after(kernel.between(0.001, 0.01), deliver)

    def _remember_watch(self, client: Client, life: int) -> None:
        """Who cannot be told now is told when it is connected again: it sets its watches anew, and
        says up to where it knows."""
        self._kernel.after(HANG_UP_S, lambda: self._tell_of_change(client, life))


# The session of those who never fail: users with patience.
USERS: Final = 1 << 40


def refused_at(outcome: Outcome) -> int | None:
    """Which operation of a multi was refused; None if all were carried out."""
    if outcome.error != p.OK:
        return 0
    for index, result in enumerate(outcome.results):
        if isinstance(result, FailedOperation) and result.error != p.OK:
            return index
    return None
