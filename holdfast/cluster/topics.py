"""Topics of a cluster: whether something uses them, where they are, and a connection to them.

    record = wanted(session)                 # something uses topics: from now on there are some
    with open(cluster, session) as topics:   # for the cluster's own processes
        ...

A record in the plane says where they are. In a cluster that is told nothing it is a broker of its
own: the first who calls `wanted` makes the record, a coordinator of the folder where the cluster
was made has the supervisor there start the broker (`control.shell.topics`), and writes its address.
With `holdfast up --topics kafka://…` the record has that address, and nothing is started. No secret
is in it.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.coordination import Config, Session
from holdfast.topics import hosting
from holdfast.topics.address import TopicsAddress
from holdfast.wire.errors import Corrupt, Missing, TimedOut, Usage
from holdfast.wire.names import TOPICS_PATH
from holdfast.wire.plain import known_fields

if TYPE_CHECKING:
    from holdfast.cluster.folder import Cluster
    from holdfast.topics import Connection

# A supervisor has started the broker by then, and it listens.
WANTED_S: Final = 30.0
EMBEDDED: Final = "embedded"
_LOOK_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class TopicsRecord:
    """Where the topics of a cluster are. `embedded`: at a broker of its own, which may have no
    address yet."""

    address: str = ""
    embedded: bool = True

    @property
    def parsed(self) -> TopicsAddress:
        return TopicsAddress.parse(self.address)


def config(session: Session) -> Config:
    """The record, for those who change or follow it."""
    return Config(session, TOPICS_PATH)


def record_from(value: object) -> TopicsRecord | None:
    """What `config` holds; None: nothing uses topics."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise Corrupt(f"{TOPICS_PATH} cannot be read", fix="holdfast topics list")
    return TopicsRecord(**known_fields(TopicsRecord, value))


def record(session: Session) -> TopicsRecord | None:
    """Where topics are; None: nothing uses them in this cluster."""
    return record_from(config(session).get().value)


def wanted(session: Session, timeout_s: float = WANTED_S) -> TopicsRecord:
    """Something uses topics: from now on the cluster has some. The record, with an address.

    `TimedOut`: the broker of the cluster is not being started; it was asked for all the same. With
    `timeout_s` 0 nobody waits, and the record may have no address yet.
    """
    known = config(session)
    found = record_from(known.get().value)
    if found is None:
        made = known.update(lambda value: value or asdict(TopicsRecord()))
        found = record_from(made.value)
    deadline_s = time.monotonic() + timeout_s
    while found is not None and not found.address and timeout_s:
        if time.monotonic() > deadline_s:
            raise TimedOut(
                f"the cluster has had no broker of topics for {timeout_s:g} s",
                why="a coordinator has it started, on the machine where the cluster was made",
                fix="holdfast up there; holdfast status shows what runs",
            )
        time.sleep(_LOOK_S)
        found = record_from(known.get().value)
    assert found is not None, "a record of topics is not removed"
    return found


def use(session: Session, text: str) -> TopicsRecord:
    """The topics of this cluster are at that address, or at a broker of its own (`embedded`).
    `Usage`: they are elsewhere already."""
    if text == EMBEDDED:
        meant = TopicsRecord()
    else:
        meant = TopicsRecord(TopicsAddress.parse(text).format(), embedded=False)

    def decide(value: object) -> object:
        found = record_from(value)
        if found is None:
            return asdict(meant)
        if found.embedded != meant.embedded or (not meant.embedded and found != meant):
            where = EMBEDDED if found.embedded else found.address
            raise Usage(
                f"the topics of this cluster are at {where}",
                why=f"--topics {text} was given, and records do not move by themselves",
                fix="leave it out, or make another cluster: holdfast up --cluster DIR --topics …",
            )
        return value

    found = record_from(config(session).update(decide).value)
    assert found is not None
    return found


def address(cluster: Cluster, found: TopicsRecord) -> TopicsAddress:
    """Where topics are, with what the cluster's own processes show there."""
    if not found.embedded:
        return found.parsed
    access = cluster.access()
    if access is None or access.is_lesser:
        raise Missing(
            f"this machine has no secret of the cluster {cluster.name}",
            why="the broker lets in who has it",
            fix="holdfast join again, with a token of where the cluster was made",
        )
    return hosting.as_owner(found.parsed, access.secret)


def open(cluster: Cluster, session: Session, timeout_s: float = WANTED_S) -> Connection:
    """A connection to the cluster's topics, for its own processes; the caller closes it. Topics are
    wanted from now on: who only wants to use them where they are asks `record` first."""
    from holdfast.topics import connect  # noqa: PLC0415 - the Kafka client is loaded when needed

    return connect(address(cluster, wanted(session, timeout_s)))


def for_worker(cluster: Cluster, found: TopicsRecord, folder: Path) -> str:
    """What a worker is told in HOLDFAST_TOPICS; what it shows there is put into its folder."""
    access = cluster.access() if found.embedded else None
    secret = None if access is None else access.secret
    return hosting.equip_worker(found.parsed, folder, secret).format()
