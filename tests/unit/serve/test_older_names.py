"""Records whose fields were called otherwise are read as what they are."""

from __future__ import annotations

import json
from pathlib import Path

from holdfast.serve.gateway.gateway import LastKnown, recall, remember
from holdfast.serve.gateway.state import KnownReplica, KnownService
from holdfast.serve.records import (
    Leaving,
    Replica,
    RolloutPlan,
    RolloutStage,
    ServiceSpec,
    Variant,
    member_of,
)
from holdfast.wire import documents

PLAN = RolloutPlan(
    7,
    RolloutStage.STEADY,
    (2, 1),
    (Variant("stable", 2, 10_000),),
    stable=2,
    revision=3,
    version_revision=2,
    leaving={1: Leaving(6, 12.5)},
)


def test_a_plan_of_an_older_version_has_lost_its_variants() -> None:
    plain = documents.document(PLAN)
    plain["arms"] = plain.pop("variants")
    plain["asked"], plain["wishes"] = plain.pop("revision"), plain.pop("version_revision")
    plain["leaving"]["1"]["course"] = plain["leaving"]["1"].pop("plan")
    assert documents.from_bytes("/it", RolloutPlan, json.dumps(plain).encode()) == PLAN
    assert documents.from_bytes("/it", RolloutPlan, documents.to_bytes(PLAN)) == PLAN


def test_a_service_of_an_older_version_has_lost_count_of_its_users_changes() -> None:
    service = ServiceSpec("it", "digits", "prod", revision=5, version_revision=4)
    plain = documents.document(service)
    plain["asked"], plain["wishes"] = plain.pop("revision"), plain.pop("version_revision")
    assert documents.from_document("/it", ServiceSpec, plain) == service


def test_a_replica_of_an_older_version_seems_to_have_followed_nothing() -> None:
    replica = Replica("it", 1, "h", 1, 2, plan=7)
    plain = documents.document(replica)
    plain["course"] = plain.pop("plan")
    shown = json.dumps({"mark": "m", "data": plain}).encode()
    assert member_of("/it", Replica, shown) == replica


def test_a_gateway_that_starts_without_the_plane_has_lost_the_plans_of_an_older_version(
    tmp_path: Path,
) -> None:
    replica = KnownReplica(Replica("it", 1, "h", 1, 2, plan=7))
    known = LastKnown(5.0, (KnownService(ServiceSpec("it", "digits", "prod"), PLAN, (replica,)),))
    remember(tmp_path, known)
    (path,) = tmp_path.iterdir()
    plain = json.loads(path.read_text())
    (service,) = plain["services"]
    service["course"] = service.pop("plan")
    service["course"]["arms"] = service["course"].pop("variants")
    service["replicas"][0]["replica"]["course"] = service["replicas"][0]["replica"].pop("plan")
    for one in (service["service"], service["course"]):
        one["asked"], one["wishes"] = one.pop("revision"), one.pop("version_revision")
    path.write_text(json.dumps(plain))
    assert recall(tmp_path) == known
