"""A session with a coordination plane: its states, its leases, its keeper. `connect` makes one."""

from __future__ import annotations

import logging
import ssl
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, Self

from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState, KeeperState

from holdfast.coordination import access as accesses
from holdfast.coordination import kazoo_client, launch, tls
from holdfast.coordination.address import SECRET, TLS, EmbeddedAddress, ZooKeeperAddress, parse
from holdfast.coordination.lease import Lease
from holdfast.coordination.nodes import Nodes
from holdfast.coordination.states import Listener, Listeners, SessionState
from holdfast.coordination.waits import Deadline, Wake
from holdfast.system.clock import Clock, SystemClock
from holdfast.system.tasks import OwnedThread, ends_process, start_thread, unexpected
from holdfast.wire.errors import HoldfastError, Refused, SessionLost, Unavailable, Usage
from holdfast.wire.limits import (
    CONNECT_TIMEOUT_S,
    KEEPER_FRACTION,
    OPERATION_TIMEOUT_S,
    RECONNECT_DELAY_S_MAX,
    THREAD_END_S,
)

# A server that has not answered the keeper by then is given up, and another one is tried.
HANG_UP_FRACTION: Final = 1 / 3
# Nodes that a waiter could not remove because the server was away; removed when it is back.
CHORES_MAX: Final = 10_000

_log = logging.getLogger("holdfast.coordination")
_log.addHandler(logging.NullHandler())  # a program that set up no logs sees none of ours

Chore = Callable[[Deadline], None]


class Session:
    """A session. Thread-safe; not to be used after a fork. Close it, or use it in a `with`.

    Every call is bounded by `operation_timeout_s`, and rides through shorter outages by itself.
    """

    def __init__(
        self,
        address: EmbeddedAddress | ZooKeeperAddress,
        *,
        secret_file: Path | None = None,
        operation_timeout_s: float = OPERATION_TIMEOUT_S,
        clock: Clock | None = None,
    ) -> None:
        self._embedded = address if isinstance(address, EmbeddedAddress) else None
        self.address = str(address)
        self.operation_timeout_s = operation_timeout_s
        self.clock: Clock = clock or SystemClock()
        self._changed = threading.Condition()
        self._state = SessionState.SUSPENDED
        self.link = 0  # counts the connections; each is counted before it carries a request
        self._lease: Lease | None = None
        self._granted_s = address.timeout_s
        self._end: HoldfastError | None = None
        self._closing = False
        self._stalled = False
        self._starting = threading.Lock()
        self._watchers: set[Wake] = set()
        self._chores: deque[tuple[Chore, Lease]] = deque(maxlen=CHORES_MAX)
        self._listeners = Listeners()
        self._context: ssl.SSLContext | None = None
        if isinstance(address, EmbeddedAddress):
            self._hosts = launch.ensure(address)
            self._target = ZooKeeperAddress(hosts=(), timeout_s=address.timeout_s)
        else:
            self._hosts, self._target = address.host_list, address
        self.access = accesses.shown_to(address, secret_file)
        self.chroot = self._target.chroot
        self._client = kazoo_client.make(
            self._target, self._hosts, self._on_granted, access=self.access, ways=self._ways()
        )
        self._client.add_listener(self._on_kazoo)
        self.nodes = Nodes(self, self._client, self.chroot, self.access)
        self._keeper_wake = threading.Event()
        self._keeper: OwnedThread | None = None

    # --- the beginning and the end --------------------------------------------------------

    def open(self, timeout_s: float = CONNECT_TIMEOUT_S) -> Self:
        """Connect; `Unavailable` with each server's own reason if none answers in time."""
        self._client.start_async()
        died = partial(self.failed, "the keeper of the session")
        self._keeper = start_thread(self._keep, "holdfast-keeper", died)
        try:
            self.await_connected(Deadline(timeout_s))
            if self.chroot:
                self.nodes.ensure("/")
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End the session: everything that it holds is given up at once. May be called twice."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
        self._ended(SessionLost("the session was closed by this process", fix="connect again"))
        self._keeper_wake.set()
        try:
            with self._starting:
                self._client.stop()
                self._client.close()
        except (KazooException, OSError) as error:
            _log.warning("the connection to %s did not close cleanly: %s", self.address, error)
        if self._keeper is not None:
            self._keeper.join(THREAD_END_S)
        self._listeners.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Session {self.address} {self._state.value}>"

    # --- what is known --------------------------------------------------------------------

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def connected(self) -> bool:
        return self._state is SessionState.CONNECTED

    @property
    def over(self) -> bool:
        """Whether it is closed for good."""
        return self._state is SessionState.CLOSED

    @property
    def session_id(self) -> int:
        """The servers' number of the present session; 0 while there is none."""
        lease = self._lease
        return 0 if lease is None or lease.lost else lease.session_id

    @property
    def timeout_s(self) -> float:
        """The time-out that the servers granted; it may differ from the one asked for."""
        return self._granted_s

    def add_listener(self, listener: Listener) -> None:
        """Call `listener(state)` after each change, in order, on a thread of its own."""
        self._listeners.add(listener)

    # --- how it is reached ----------------------------------------------------------------

    def _ways(self) -> kazoo_client.Ways | None:
        """None: a server that kazoo reaches by itself."""
        if self._embedded is not None:
            return kazoo_client.Ways(launch.user_of(self._embedded.folder), self._tls)
        wanted, owner = self._target.tls, self._target.owner
        if owner is not None:
            return kazoo_client.Ways(lambda: owner, self._tls)
        if wanted is None or wanted.verify != SECRET:
            return None
        self._tls()  # what is missing for it is said now
        return kazoo_client.Ways(tls=self._tls)

    def _tls(self) -> ssl.SSLContext | None:
        """The present server's; None: it speaks plain text."""
        wanted = self._target.tls
        if self._embedded is not None and launch.speaks_tls(self._embedded.folder):
            wanted = TLS(verify=SECRET)
        if wanted is None:
            return None
        if self._context is None:
            self._context = tls.context(wanted, self.access)
        return self._context

    # --- for the recipes ------------------------------------------------------------------

    def lease(self, deadline: Deadline | None = None) -> Lease:
        """The present lease, confirmed by a server just now or lately enough."""
        deadline = (deadline or Deadline(None)).within(self.operation_timeout_s)
        while True:
            lease = self.await_connected(deadline)
            if lease.sure:
                return lease
            self._keeper_wake.set()
            with self._changed:
                if not lease.sure and not lease.lost:
                    self._changed.wait(min(deadline.left_s() or 0.0, RECONNECT_DELAY_S_MAX))
            if deadline.passed:
                raise self.unavailable()

    def await_connected(self, deadline: Deadline, lease: Lease | None = None) -> Lease:
        """Wait until a server answers. Raises as soon as `lease`, if given, is over."""
        with self._changed:
            while True:
                if lease is not None:
                    lease.check()
                if self._end is not None:
                    raise self._end
                if self._state is SessionState.CONNECTED and self._lease is not None:
                    return self._lease
                if deadline.passed:
                    break
                self._changed.wait(deadline.left_s())
        raise self.unavailable()

    def unavailable(self) -> Unavailable:
        """The error for a plane that does not answer."""
        return Unavailable(
            f"the coordination plane {self.address} does not answer",
            why=kazoo_client.diagnose(self._hosts, self._tls),
            fix=f"holdfast coord status {self.address}",
        )

    def on_change(self, wake: Wake) -> None:
        """Call `wake` after each change of state, on kazoo's thread."""
        with self._changed:
            self._watchers.add(wake)

    def forget(self, *wakes: Wake) -> None:
        """Nobody waits behind these any more."""
        with self._changed:
            self._watchers.difference_update(wakes)
        if wakes:
            self.nodes.forget(*wakes)

    def soon(self, chore: Chore, lease: Lease) -> None:
        """Do `chore` now, or as soon as a server answers; never, once `lease` is over.

        For removing what `lease` does not need any more: it goes with `lease` in any case. Does not
        raise for a server that is away.
        """
        if lease.lost:
            return
        if self.connected:
            try:
                chore(self.nodes.deadline(None))
            except HoldfastError as error:
                _log.debug("a chore is left for later: %s", error)
            else:
                return
        self._chores.append((chore, lease))
        self._keeper_wake.set()

    def failed(self, what: str, error: BaseException) -> None:
        """A thread of the session, or of a recipe, has died: nothing of it holds any more. Whoever
        uses it is told, and a process of ours ends. What ends with the session has not died."""
        if self.over:
            _log.debug("%s ended with its session: %r", what, error)
            return
        self._ended(unexpected(what, error))
        ends_process(what)(error)

    # --- kazoo's side: never blocks ---------------------------------------------------------

    def _on_granted(self, timeout_s: float) -> None:
        self._granted_s = timeout_s

    def _on_kazoo(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            client_id = self._client.client_id
            if client_id is not None:
                self._connected(client_id[0])
        elif state == KazooState.SUSPENDED:
            self._become(SessionState.SUSPENDED)
        elif self._client.client_state == KeeperState.EXPIRED_SESSION:
            self._lost("the servers ended the session: they had not heard of it for too long")
        elif self._client.client_state == KeeperState.AUTH_FAILED:
            self._ended(
                Refused(
                    f"{self.address} refused the credentials",
                    fix="check secret_file=, or user= and the variable that password_env= names",
                )
            )
        elif not self._closing:
            # kazoo's thread ends at an answer that it does not expect, and forgets the session.
            self._stalled = True
            self._lost("the connection broke down; see the log of holdfast.coordination.kazoo")

    def _connected(self, session_id: int) -> None:
        with self._changed:
            self.link += 1
            old = self._lease
        if old is None or old.session_id != session_id:
            if old is not None:
                old.end("another session took its place")
            with self._changed:
                self._lease = Lease(session_id, self._granted_s, self.clock)
        self._become(SessionState.CONNECTED)

    def _lost(self, reason: str) -> None:
        lease = self._lease
        if lease is not None:
            lease.end(reason)
        self._become(SessionState.LOST)

    def _ended(self, error: HoldfastError) -> None:
        with self._changed:
            if self._end is None:
                self._end = error
        lease = self._lease
        if lease is not None:
            lease.end(error.what)
        self._become(SessionState.CLOSED)

    def _become(self, state: SessionState) -> None:
        with self._changed:
            if self._state is SessionState.CLOSED or self._state is state:
                return
            self._state = state
            self._changed.notify_all()
            watchers = tuple(self._watchers)
        self._listeners.tell(state)
        self._keeper_wake.set()
        for wake in watchers:
            wake()

    # --- the keeper ---------------------------------------------------------------------------

    def _keep(self) -> None:
        """Renews the lease, gives up servers that do not answer, revives the embedded one."""
        trouble = ""
        while True:
            self._keeper_wake.clear()
            if self._end is not None:
                return
            pause_s = RECONNECT_DELAY_S_MAX
            lease = self._lease
            try:
                if self._state is SessionState.CONNECTED and lease is not None:
                    pause_s = KEEPER_FRACTION * lease.timeout_s
                    if self._confirm(lease):
                        self._do_chores()
                elif self._embedded is not None:
                    self._revive(self._embedded)
                if self._stalled:
                    self._start_again()
            except HoldfastError as error:
                if error.what != trouble:
                    _log.warning("the keeper of %s goes on after: %s", self.address, error)
                trouble = error.what
            else:
                trouble = ""
            self._keeper_wake.wait(pause_s)

    def _start_again(self) -> None:
        """Give kazoo a new thread after its own broke down; it makes a new session."""
        with self._starting:
            if not self._closing:
                self._stalled = False
                self._client.start_async()

    def _confirm(self, lease: Lease) -> bool:
        """One round trip that reaches the ensemble's leader; a read might be a follower's memory.
        For what is held it is a vote: a leader that others have replaced may not know it yet.

        One at a time, and bounded: a question answered later than `HANG_UP_FRACTION` of the
        session's time does not count. That keeps a server which slept, and does not know yet that
        it was replaced, from confirming anything.
        """
        sent_s = self.clock.now_s()
        fences, alone = self.nodes.fences, self._embedded is not None
        answer = fences.vote() if lease.held and not alone else fences.sync()
        try:
            answer.get(timeout=HANG_UP_FRACTION * lease.timeout_s)
        except KazooTimeoutError:
            _log.warning("%s: the server does not answer; trying another", self.address)
            kazoo_client.hang_up(self._client)
            return False
        except KazooException as error:
            _log.debug("%s: no sign of life: %r", self.address, error)
            return False
        if self._lease is lease and not lease.lost:
            lease.confirmed(sent_s)
        with self._changed:
            self._changed.notify_all()
        return True

    def _do_chores(self) -> None:
        for _ in range(len(self._chores)):
            chore, lease = self._chores.popleft()
            if lease.lost:
                continue
            try:
                chore(Deadline(HANG_UP_FRACTION * lease.timeout_s))
            except SessionLost:
                continue
            except HoldfastError:
                self._chores.append((chore, lease))
                raise

    def _revive(self, embedded: EmbeddedAddress) -> None:
        """Start the embedded server again if it died; follow it if it has another port. One that
        was ended on purpose is waited for."""
        hosts = launch.ensure(embedded)
        if hosts != self._hosts:
            self._hosts = hosts
            self._client.set_hosts(hosts)


def connect(
    address: str,
    *,
    secret_file: Path | None = None,
    timeout_s: float = CONNECT_TIMEOUT_S,
    operation_timeout_s: float = OPERATION_TIMEOUT_S,
    clock: Clock | None = None,
) -> Session:
    """A session with the coordination plane at `address`.

    `embedded:DIR[?timeout_s=…&linger_s=…&tick_ms=…]`: the server over a folder on this machine.
    It is started if none runs there, started again if it dies (not if `holdfast down` ended it),
    and ends by itself `linger_s` after its last client. Whoever can read its folder is let in.
    `zk://h1:2181,h2,h3/chroot?timeout_s=…&secret_file=…&tls=…&ca=…&cert=…&key=…&verify=…`: a
    ZooKeeper ensemble, or the embedded server by its address. With a secret (here, in the address,
    or as `user=…&password_env=…`) nodes are open to those who have it; without one, to everybody.
    """
    if timeout_s <= 0 or operation_timeout_s <= 0:
        raise Usage("a time-out must be greater than zero", fix="leave it out for the default")
    more = {"secret_file": secret_file, "operation_timeout_s": operation_timeout_s, "clock": clock}
    return Session(parse(address), **more).open(timeout_s)  # type: ignore[arg-type]
