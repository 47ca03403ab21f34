"""Feature tables of a cluster: where the online store is, and a connection to it.

A record in the plane says where the store is. In a cluster that is told nothing it is a Valkey of
its own, on the machine where the cluster was made: the first who calls `wanted` makes the record,
and a coordinator of that folder has the supervisor there start it (`control.shell.features`). With
`holdfast up --features cassandra://…` the record has that address, and nothing is started. No
secret is in it.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from holdfast.coordination import Config, Session
from holdfast.features import hosting
from holdfast.features.address import FeaturesAddress
from holdfast.wire.errors import Corrupt, Missing, TimedOut, Unavailable, Usage
from holdfast.wire.names import FEATURES_PATH
from holdfast.wire.plain import known_fields

if TYPE_CHECKING:
    from holdfast.cluster.folder import Cluster
    from holdfast.features.online.store import OnlineStore

# A supervisor has started the server by then, and it answers.
WANTED_S: Final = 30.0
EMBEDDED: Final = "embedded"
_LOOK_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class FeaturesRecord:
    """Where the online store is. `embedded`: a Valkey of the cluster's own, on the machine where
    the cluster was made; then `address` is empty."""

    address: str = ""
    embedded: bool = True


def config(session: Session) -> Config:
    """The record, for those who change or follow it."""
    return Config(session, FEATURES_PATH)


def record_from(value: object) -> FeaturesRecord | None:
    """What `config` holds; None: there are no feature tables."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise Corrupt(f"{FEATURES_PATH} cannot be read", fix="holdfast features list")
    return FeaturesRecord(**known_fields(FeaturesRecord, value))


def record(session: Session) -> FeaturesRecord | None:
    """Where the online store is; None: nothing uses one in this cluster."""
    return record_from(config(session).get().value)


def wanted(session: Session) -> FeaturesRecord:
    """There are tables: from now on the cluster has an online store."""
    found = record_from(config(session).get().value)
    if found is None:
        made = config(session).update(lambda value: value or asdict(FeaturesRecord()))
        found = record_from(made.value)
    assert found is not None, "a record of features is not removed"
    return found


def use(session: Session, text: str) -> FeaturesRecord:
    """The online store of this cluster is at that address, or its own (`embedded`). `Usage`: it is
    elsewhere already."""
    if text == EMBEDDED:
        meant = FeaturesRecord()
    else:
        meant = FeaturesRecord(FeaturesAddress.parse(text).format(), embedded=False)

    def decide(value: object) -> object:
        found = record_from(value)
        if found is None:
            return asdict(meant)
        if found != meant:
            where = EMBEDDED if found.embedded else found.address
            raise Usage(
                f"the feature tables of this cluster are at {where}",
                why=f"--features {text} was given, and rows do not move by themselves",
                fix="leave it out, or make another cluster: holdfast up --cluster DIR --features …",
            )
        return value

    found = record_from(config(session).update(decide).value)
    assert found is not None
    return found


def address(cluster: Cluster, found: FeaturesRecord) -> FeaturesAddress:
    """Where the store is, with what the cluster's own processes show there."""
    if not found.embedded:
        return FeaturesAddress.parse(found.address)
    access = cluster.access()
    if access is None or access.is_lesser:
        raise Missing(
            f"this machine has no secret of the cluster {cluster.name}",
            why="the store of its tables lets in who has it",
            fix="holdfast join again, with a token of where the cluster was made",
        )
    if not cluster.is_home:
        raise Unavailable(
            f"the tables of the cluster {cluster.name} are on another machine",
            why="its Valkey listens on a socket of the machine where the cluster was made",
            fix="run this there; a store for many machines: holdfast up --features cassandra://…",
        )
    return hosting.as_owner(hosting.address_in(cluster.folder), access.secret)


def open(cluster: Cluster, found: FeaturesRecord, timeout_s: float = WANTED_S) -> OnlineStore:
    """The online store, for the cluster's own processes; the caller closes it. One of the cluster's
    own is waited for: `TimedOut`, if it does not answer."""
    from holdfast.features.online.opening import open_store  # noqa: PLC0415 - loads the client

    where = address(cluster, found)
    deadline_s = time.monotonic() + timeout_s
    while True:
        store = open_store(where)
        if not found.embedded:
            return store
        trouble = store.status().trouble
        if not trouble:
            return store
        store.close()
        if time.monotonic() > deadline_s:
            raise TimedOut(
                f"the cluster's Valkey has not answered for {timeout_s:g} s",
                why=trouble,
                fix="holdfast up; holdfast status shows what runs",
            )
        time.sleep(_LOOK_S)
