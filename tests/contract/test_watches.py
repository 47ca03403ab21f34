"""Whoever looks at nodes that come and go does not keep a watch for each that has gone."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from holdfast.coordination import Facts, Session
from holdfast.serve.controller.mirror import ServicesMirror
from holdfast.serve.gateway.watching import PlaneWatcher
from holdfast.serve.records import (
    Replica,
    RolloutPlan,
    RolloutStage,
    ServiceSpec,
    plan_path,
    replicas_path,
    service_path,
)
from holdfast.wire import documents
from tests.contract.interleaving import before_first
from tests.waiting import eventually

NAME = "digits"


def never() -> bool:
    raise AssertionError("no reply was lost")


@pytest.mark.parametrize("how", ["read_all", "watch_end", "children"])
def test_a_look_at_a_node_that_is_gone_leaves_no_watch_behind(session: Session, how: str) -> None:
    woken = threading.Event()
    nodes = session.nodes
    for number in range(20):
        path = f"/gone/{number}"
        if how == "read_all":
            assert nodes.read_all([(path, woken.set)]) == [None]
        elif how == "watch_end":
            assert not nodes.watch_end(path, woken.set)
        else:
            # Its coming is waited for by a watch on the node itself, and by none on its children.
            assert nodes.children(path, woken.set) == []
    assert nodes.waiting == (20 if how == "children" else 0)


def test_a_gateway_keeps_no_watch_for_a_replica_that_is_gone_and_sees_it_come_back(
    session: Session,
) -> None:
    facts = Facts(session)
    watching = PlaneWatcher(lambda: session, lambda: None)
    above = replicas_path(NAME)
    replica = f"{above}/7"
    data = documents.encoded({"mark": "m", "data": documents.document(_replica())})
    made = facts.transaction(never)
    made.create(service_path(NAME), documents.to_bytes(ServiceSpec(NAME, "m", "prod")))
    made.create(plan_path(NAME), documents.to_bytes(RolloutPlan(1, RolloutStage.STEADY)))
    made.create(above, b"").create(replica, data).commit()
    assert watching._read(session)
    assert set(_found(watching)) == {"7"}
    for _ in range(3):
        facts.transaction(never).remove(replica).commit()
        eventually(lambda: watching._read(session), "its watch has fired")
        assert _found(watching) == {}
        eventually(lambda: not _watched(session, replica), "nobody waits for what is gone")
        facts.transaction(never).create(replica, data).commit()
        eventually(lambda: watching._read(session), "the list says that it is back")
        assert set(_found(watching)) == {"7"}


def test_a_service_of_a_gateway_that_cannot_be_read_stays_as_it_was_and_the_others_change(
    session: Session,
) -> None:
    facts = Facts(session)
    watching = PlaneWatcher(lambda: session, lambda: None)
    made = facts.transaction(never)
    for name in ("a", "b"):
        made.create(service_path(name), documents.to_bytes(ServiceSpec(name, "m", "prod")))
    made.commit()
    assert watching._read(session)
    changed = facts.transaction(never).replace(service_path("a"), b"what")
    changed.replace(service_path("b"), documents.to_bytes(ServiceSpec("b", "m", "other"))).commit()

    def targets() -> list[str]:
        watching._read(session)
        return [found.service.target for _, found in sorted(watching._picture().items())]

    eventually(lambda: targets() == ["prod", "other"], "the last of one, the new one of the other")


def test_a_service_that_changes_while_its_job_is_looked_for_is_what_the_controller_decides_upon(
    session: Session,
) -> None:
    facts, woken = Facts(session), threading.Event()
    path = service_path(NAME)
    made = facts.transaction(never)
    made.create(path, documents.to_bytes(ServiceSpec(NAME, "m", "1"))).commit()
    mirror = ServicesMirror(session, woken.set)

    def change() -> None:
        data = documents.to_bytes(ServiceSpec(NAME, "m", "2"))
        facts.transaction(never).replace(path, data).commit()
        eventually(woken.is_set, "its watch has fired")

    with before_first(mirror._mirror, "follow", change):
        mirror.read()
    assert mirror.services[NAME].desired.version == 2
    mirror.close()


def _watched(session: Session, path: str) -> bool:
    """Whether anybody waits for a change of this node."""
    keys: list[Any] = list(dict(session.nodes._watches._watches))
    return any(str(key[1]).endswith(path) for key in keys)


def _found(watching: PlaneWatcher) -> Any:
    return watching._picture()[NAME].replicas


def _replica() -> Replica:
    return Replica(NAME, 7, "127.0.0.1", 1, 2)
