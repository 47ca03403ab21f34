"""The ring as the driver knows it: opened at the first call, bounded, and never used after a fork.

The driver has threads of its own: one event loop of libev for all sessions of the process, two for
what may block, one for what comes later. They begin with the first session and are the driver's;
`close` ends them. What is ours is decided in the threads of those who call.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from concurrent import futures
from typing import Any, ClassVar, Final, TypeVar

from cassandra import cluster as driver
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import ConstantReconnectionPolicy, ConstantSpeculativeExecutionPolicy
from cassandra.query import tuple_factory

from holdfast.features.address import FeaturesAddress
from holdfast.features.online.cassandra import failures
from holdfast.features.online.cassandra.expiry import ClockedProtocol, takes_clock
from holdfast.features.online.cassandra.routing import OwnersFirst
from holdfast.wire.errors import TimedOut, Usage

T = TypeVar("T")

# How long one statement may take.
ANSWER_S: Final = 10.0
CONNECT_S_MAX: Final = 5.0
# A node that is away is looked for so often.
RECONNECT_S: Final = 1.0
# One that stands still is noticed within twice this.
HEARTBEAT_S: Final = 5.0
# A node that has said nothing for so long may stand still: another one is asked as well, and one
# more after that. Reads and writes may be done twice: what was written is what it was.
HEDGE_S: Final = 0.5
HEDGES_MAX: Final = 2
# Until all nodes have the same tables.
AGREE_S: Final = 10.0
PROFILES_S: Final = 5.0

_log = logging.getLogger(__name__)
# The driver writes of each node that is away, and of each attempt; what matters comes as an error.
_drivers_log = logging.getLogger("cassandra")


class Ring:
    """One session with the nodes. Any thread may use it."""

    def __init__(self, address: FeaturesAddress, answer_s: float = ANSWER_S) -> None:
        self._address = address
        self._answer_s = answer_s
        self._lock = threading.RLock()
        self._cluster: Any = None
        self._session: Any = None
        self._near = OwnersFirst(address.dc, goes_elsewhere=True)
        self._homes: dict[str, str] = {}
        self._closed = False
        self._pid = os.getpid()

    # --- the session ------------------------------------------------------------------------------

    @property
    def answer_s(self) -> float:
        return self._answer_s

    @property
    def session(self) -> Any:
        """The session; it is opened now, if it is not open."""
        self.check()
        return self._session or self._locked(self._open)

    @property
    def metadata(self) -> Any:
        """What the driver knows of nodes and keyspaces."""
        return self.session.cluster.metadata

    @property
    def takes_clock(self) -> bool:
        """Whether a write may bring its own clock along."""
        return takes_clock(self.session.cluster.protocol_version)

    def check(self) -> None:
        """Refuse what is asked of a closed store, or in a forked process."""
        if os.getpid() != self._pid:
            raise Usage(
                "the store of features was opened before this process was forked",
                why="its threads and connections are the parent's",
                fix="open a store after the fork, in the process that uses it",
            )
        if self._closed:
            raise failures.closed()

    def close(self) -> None:
        """End it, with all that is under way. In a forked process there is nothing to end."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
            cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.shutdown()

    # --- the nodes --------------------------------------------------------------------------------

    def hosts(self) -> list[Any]:
        """All nodes that have a place in the ring, also those that are away; in a fixed order."""
        return sorted(self.metadata.all_hosts(), key=lambda host: str(host.endpoint))

    def reached(self) -> list[Any]:
        """Those that run, as far as this process knows. A session begins with one of them: the
        others are waited for here."""
        session = self.session
        futures.wait(session._initial_connect_futures, timeout=CONNECT_S_MAX)
        connected = {pool.host for pool in session.get_pools()}
        return [host for host in self.hosts() if host.is_up and host in connected]

    def centers(self) -> dict[str, int]:
        """How many nodes each data center has."""
        return dict(Counter(str(host.datacenter) for host in self.hosts()))

    @property
    def near(self) -> str:
        """The data center that is near."""
        return str(self._near.center)

    def profile(self, center: str | None) -> Any:
        """The driver's name of a way to ask: in this data center alone, or (None) where it is near,
        and elsewhere if nobody is there."""
        session = self.session
        if center is None:
            return EXEC_PROFILE_DEFAULT
        return self._homes.get(center) or self._locked(lambda: self._add_home(session, center))

    # --- private ----------------------------------------------------------------------------------

    def _locked(self, make: Callable[[], T]) -> T:
        """Somebody else may be opening it; that is waited for, and not for ever."""
        if not self._lock.acquire(timeout=2 * self._answer_s):
            raise TimedOut(
                "the nodes of the feature tables do not answer",
                why=f"a connection is not made within {2 * self._answer_s:g} s",
                fix="look whether the nodes run",
            )
        try:
            self.check()
            return make()
        finally:
            self._lock.release()

    def _open(self) -> Any:
        if self._session is not None:
            return self._session
        if _drivers_log.level == logging.NOTSET:
            _drivers_log.setLevel(logging.CRITICAL)
        cluster = self._configured()
        try:
            session = cluster.connect()
            session.client_protocol_handler = ClockedProtocol
            session.use_client_timestamp = False
            self._check_center(cluster)
        except Exception as error:
            try:
                self._check_center(cluster)  # says more than that nobody is near
            finally:
                cluster.shutdown()
            raise failures.translate(error, f"{self._address} cannot be reached") from error
        except BaseException:
            cluster.shutdown()
            raise
        self._cluster, self._session = cluster, session
        _Forked.keep(cluster)
        return session

    def _configured(self) -> Any:
        address = self._address
        password = address.read_password()
        connect_s = min(self._answer_s, CONNECT_S_MAX)
        points = [_host(text) for text in address.hosts]
        self._near = OwnersFirst(address.dc, goes_elsewhere=True)
        return Cluster(
            points,
            port=points[0][1],
            auth_provider=PlainTextAuthProvider(address.user, password) if address.user else None,
            ssl_context=tls_context(address) if address.encrypts else None,
            execution_profiles={EXEC_PROFILE_DEFAULT: self._profile(self._near)},
            reconnection_policy=ConstantReconnectionPolicy(RECONNECT_S, max_attempts=None),
            # Rows are packed numbers.
            compression=False,
            connect_timeout=connect_s,
            control_connection_timeout=connect_s,
            idle_heartbeat_interval=HEARTBEAT_S,
            idle_heartbeat_timeout=HEARTBEAT_S,
            max_schema_agreement_wait=AGREE_S,
            monitor_reporting_enabled=False,
        )

    def _profile(self, policy: OwnersFirst) -> Any:
        return ExecutionProfile(
            load_balancing_policy=policy,
            row_factory=tuple_factory,
            request_timeout=self._answer_s,
            speculative_execution_policy=ConstantSpeculativeExecutionPolicy(HEDGE_S, HEDGES_MAX),
        )

    def _check_center(self, cluster: Any) -> None:
        """The data center that is near: of the address, or the only one."""
        centers = sorted({str(one.datacenter) for one in cluster.metadata.all_hosts()} - {"None"})
        if not centers:
            return
        named = self._address.dc
        if named is None and len(centers) > 1:
            raise Usage(
                f"{self._address} does not say which data center is near",
                why=f"the ring has {', '.join(centers)}",
                fix=f"write dc={centers[0]}, for example",
            )
        if named is not None and named not in centers:
            raise Usage(
                f"{self._address} names the data center {named!r}, which is not there",
                why=f"the ring has {', '.join(centers)}",
                fix=f"write dc={centers[0]}, for example",
            )
        self._near.center = named or centers[0]

    def _add_home(self, session: Any, center: str) -> str:
        if center not in self._homes:
            name = f"in {center}"
            profile = self._profile(OwnersFirst(center, goes_elsewhere=False))
            try:
                session.cluster.add_execution_profile(name, profile, PROFILES_S)
            except Exception as error:
                raise failures.translate(error, f"{center} cannot be reached") from error
            self._homes[center] = name
        return self._homes[center]


def _host(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def tls_context(address: FeaturesAddress) -> ssl.SSLContext:
    """How servers are spoken with that encrypt; `Usage` if a file cannot be read."""
    try:
        context = ssl.create_default_context(cafile=address.ca)
        context.check_hostname = address.verify == "host"
        if address.verify == "none":
            context.verify_mode = ssl.CERT_NONE
        if address.cert is not None:
            context.load_cert_chain(address.cert, address.key)
    except (OSError, ssl.SSLError) as error:
        raise Usage(
            "the certificates that the address names cannot be read",
            why=str(error),
            fix="ca=, cert= and key= are PEM files; the key has no password",
        ) from error
    return context


class _Forked:
    """Sessions that a forked process has inherited. Their threads are not there, so ending them, as
    the driver does when a process ends, would wait for what never comes."""

    _all: ClassVar[weakref.WeakSet[Any]] = weakref.WeakSet()

    @classmethod
    def keep(cls, cluster: Any) -> None:
        cls._all.add(cluster)

    @classmethod
    def let_go(cls) -> None:
        for cluster in list(cls._all):
            driver._discard_cluster_shutdown(cluster)
        cls._all.clear()


os.register_at_fork(after_in_child=_Forked.let_go)
