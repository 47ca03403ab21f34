"""Having a broker of topics started, once something uses them.

A coordinator in the folder where the cluster was made gives the broker an address, writes it into
the record of topics (`cluster.topics`), and has the broker kept alive (`keeping`).
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from holdfast.cluster import Cluster
from holdfast.cluster import topics as records
from holdfast.cluster.topics import TopicsRecord
from holdfast.control.shell.keeping import ProcessKeeper
from holdfast.coordination import Session
from holdfast.coordination.address import TRUSTED
from holdfast.system.listening import is_loopback
from holdfast.topics import hosting


def topics_keeper(cluster: Cluster, session: Session) -> ProcessKeeper:
    """Keeps the broker of this cluster, if it is to have one."""

    def keep(value: Any) -> bool:
        found = records.record_from(value)
        access = cluster.access()
        assert access is not None, "a cluster has a secret where it was made"
        assert found is not None, "the keeper asks for what is there"
        address = _placed(cluster, session, found).parsed
        return hosting.keep(
            cluster.folder, address.servers[0], access.secret, encrypts=address.encrypts
        )

    return ProcessKeeper(cluster, records.config(session), "topics", _wants, keep)


def _wants(value: Any) -> bool:
    found = records.record_from(value)
    return found is not None and found.embedded


def _placed(cluster: Cluster, session: Session, found: TopicsRecord) -> TopicsRecord:
    """The record with an address at which our broker listens, or can."""
    listen = found.parsed.servers[0] if found.address else ""
    if listen and (hosting.lives(cluster.folder) or hosting.is_free(listen)):
        return found
    host = cluster.listen
    port = hosting.free_port(host)
    listen = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    embedded = cluster.embedded
    trusted = embedded is not None and embedded.network == TRUSTED
    encrypts = not is_loopback(host) and not trusted
    made = hosting.address_at(listen, encrypts=encrypts).format()
    before = asdict(found)

    def place(value: object) -> object:
        # Another coordinator here may have placed it first.
        return asdict(replace(found, address=made)) if value == before else value

    placed = records.record_from(records.config(session).update(place).value)
    assert placed is not None
    return placed
