"""Whom a statement goes to: the nodes that have its rows, then those that are near."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from cassandra.policies import HostDistance, LoadBalancingPolicy


class OwnersFirst(LoadBalancingPolicy):  # type: ignore[misc]  # the driver has no types
    """The owners of a statement's rows that run, in the order in which it names them; then others
    of the data center `center`; then, if `goes_elsewhere`, nodes of other data centers. Without a
    center all are near.

    The driver's own policy for data centers forgets nodes when it is added to a session that runs
    (`groupby` over what is not sorted), and takes a node whose data center it does not know for
    one of its own: a majority would be asked in the wrong one.
    """

    def __init__(self, center: str | None, *, goes_elsewhere: bool) -> None:
        super().__init__()
        self.center = center
        self._goes_elsewhere = goes_elsewhere
        self._turns = itertools.count()
        self._metadata: Any = None

    def populate(self, cluster: Any, hosts: Any) -> None:
        self._metadata = cluster.metadata

    def distance(self, host: Any) -> Any:
        if self.center is None or host.datacenter == self.center:
            return HostDistance.LOCAL
        known = host.datacenter is not None
        return HostDistance.REMOTE if self._goes_elsewhere and known else HostDistance.IGNORED

    def make_query_plan(self, working_keyspace: Any = None, query: Any = None) -> Iterator[Any]:
        if query is None:  # the driver's own questions, which any node can answer
            yield from self._near(self._metadata.all_hosts(), lost=True)
            return
        owners: Sequence[Any] = getattr(query, "owners", ())
        for host in owners:
            if host.is_up and self.distance(host) != HostDistance.IGNORED:
                yield host
        near = self._near(self._metadata.all_hosts(), lost=False)
        yield from (host for host in near if host not in owners)

    def _near(self, hosts: Sequence[Any], *, lost: bool) -> Iterator[Any]:
        """Those that run, the near ones first, each time beginning with another one; then, if
        `lost`, all that are left."""
        turn = next(self._turns)
        order = (HostDistance.LOCAL, HostDistance.REMOTE)
        for distance in order:
            found = [one for one in hosts if one.is_up and self.distance(one) == distance]
            first = turn % len(found) if found else 0
            yield from itertools.chain(found[first:], found[:first])
        if lost:
            yield from (one for one in hosts if not (one.is_up and self.distance(one) in order))

    def on_up(self, host: Any) -> None:
        """What runs is looked up for each statement."""

    on_down = on_add = on_remove = on_up


class Owners:
    """The nodes that have a key, for the statements of one call: of one keyspace, in one data
    center (None: in all of them). `turn`: which of them comes first; so calls take turns, and the
    keys of one call go to few nodes, each with many of them."""

    def __init__(self, metadata: Any, keyspace: str, center: str | None, turn: int) -> None:
        self._metadata = metadata
        self._keyspace = keyspace
        self._center = center
        self._turn = turn
        self._known: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def of(self, key: bytes) -> tuple[Any, ...]:
        """Those that run. Empty: the driver does not know (yet), and any node finds them."""
        replicas = tuple(self._metadata.get_replicas(self._keyspace, key))
        found = self._known.get(replicas)
        if found is None:
            running = [
                host for host in replicas if host.is_up and self._center in (None, host.datacenter)
            ]
            # In one order, whichever of them is the first for a part of the ring.
            running.sort(key=lambda host: str(host.host_id))
            first = self._turn % len(running) if running else 0
            found = self._known[replicas] = (*running[first:], *running[:first])
        return found
