"""Services as their users change them, over a real coordination plane."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from holdfast.control.decide.facts import Intent
from holdfast.control.decide.spec import Mode
from holdfast.control.store.plane import ControlPlane
from holdfast.coordination import Facts, Membership, Session, connect
from holdfast.models.records import (
    Alias,
    ModelKind,
    Signature,
    TensorSpec,
    Version,
    alias_path,
    version_path,
)
from holdfast.serve import checked
from holdfast.serve.records import (
    SERVICES,
    WEIGHT_TOTAL,
    Replica,
    RolloutPlan,
    RolloutPolicy,
    RolloutStage,
    ServiceSpec,
    Variant,
    job_name,
    plan_path,
    replicas_path,
    service_path,
)
from holdfast.serve.services import Services, key_digest
from holdfast.wire.documents import document, to_bytes
from holdfast.wire.errors import Conflict, Missing, Refused, Usage
from holdfast.wire.limits import SERVICE_REPLICAS_MAX
from holdfast.wire.resources import Resources
from tests.contract.planes import EmbeddedPlane

SIGNATURE = Signature((TensorSpec("x", "FP32", (-1, 2)),), (TensorSpec("y", "FP32", (-1, 2)),))
STEADY = RolloutPlan(3, RolloutStage.STEADY, (2, 1), (Variant("stable", 2, WEIGHT_TOTAL),), 2, 1)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    plane = EmbeddedPlane(tmp_path_factory.mktemp("services"))
    try:
        with connect(plane.address(timeout_s=20)) as session:
            publish(session)
            yield plane.address(timeout_s=20)
    finally:
        plane.end()


def publish(session: Session) -> None:
    """Versions 1 to 3 of `digits`, the last one retired; the alias `prod` names version 1."""
    facts = Facts(session)
    for number in (1, 2, 3):
        retired = "it was worse" if number == 3 else ""
        made = Version(
            "digits", number, ModelKind.FUNCTION, SIGNATURE, {}, "p", 0.0, retired=retired
        )
        path = version_path("digits", number)
        facts.transaction(lambda: False).create(path, to_bytes(made)).commit()
    path = alias_path("digits", "prod")
    facts.transaction(lambda: False).create(path, to_bytes(Alias(1))).commit()


@pytest.fixture
def session(address: str) -> Iterator[Session]:
    with connect(address) as made:
        yield made
        for name in Services(made).services():
            wipe(made, service_path(name))
        control = ControlPlane(made)
        for name in control.jobs():
            wipe(made, f"/holdfast/jobs/{name}")


def wipe(session: Session, path: str) -> None:
    for name in session.nodes.children(path):
        wipe(session, f"{path}/{name}")
    session.nodes.delete(path)


@pytest.fixture
def services(session: Session) -> Services:
    return Services(session, "anna")


def digits(**more: object) -> ServiceSpec:
    made = ServiceSpec("it", "digits", "prod", replicas_min=2, replicas_max=4)
    return replace(made, **more)  # type: ignore[arg-type]


def decide(session: Session, plan: RolloutPlan) -> None:
    Facts(session).transaction(lambda: False).create(plan_path("it"), to_bytes(plan)).commit()


# --- creating ---------------------------------------------------------------------------------


def test_a_new_service_is_there_with_the_job_of_its_replicas(
    services: Services, session: Session
) -> None:
    made = services.create(digits())
    assert services.service("it") == made
    assert (made.revision, list(services.services())) == (1, ["it"])
    job = ControlPlane(session).job(job_name("it"))
    assert job.spec.mode is Mode.SERVE
    assert job.spec.command == ("python", "-m", "holdfast.serve.replica", "it")
    assert (job.workers_wanted, job.spec.workers_min) == (2, 1)
    assert job.spec.workers_max == SERVICE_REPLICAS_MAX
    assert services.plan("it") is None
    assert services.replicas("it") == {}
    assert services.gateways() == {}
    assert [each.reason for each in services.history("it")] == ["anna asked: serve digits@prod"]


def test_a_second_service_of_the_same_name_is_refused_and_the_first_stays(
    services: Services,
) -> None:
    services.create(digits())
    with pytest.raises(Conflict, match="there is a service it already"):
        services.create(digits(target="2"))
    assert services.service("it").target == "prod"


def test_the_job_is_submitted_once_and_again_when_it_has_gone(
    services: Services, session: Session
) -> None:
    services.create(digits())
    control = ControlPlane(session)
    before = control.job(job_name("it")).submitted_s
    services.ensure_job("it")
    assert control.job(job_name("it")).submitted_s == before
    wipe(session, f"/holdfast/jobs/{job_name('it')}")
    services.ensure_job("it")
    assert control.job(job_name("it")).workers_wanted == 2


@pytest.mark.parametrize(
    ("target", "error", "what"),
    [
        ("4", Missing, "has no version 4"),
        ("canary", Missing, "has no alias canary"),
        ("3", Refused, "version 3 of digits is retired"),
    ],
)
def test_what_is_not_there_is_not_served(
    services: Services, target: str, error: type[Exception], what: str
) -> None:
    with pytest.raises(error, match=what):
        services.create(digits(target=target))
    assert services.services() == {}


def test_a_model_that_was_never_published_is_not_served(services: Services) -> None:
    with pytest.raises(Missing, match="there is no model nets"):
        services.create(digits(model="nets"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"replicas_min": 3, "replicas_max": 2},
        {"replicas_min": 0},
        {"replicas_max": SERVICE_REPLICAS_MAX + 1},
        {"replicas_wanted": 0},
        {"resources": Resources()},
        {"policy": RolloutPolicy(steps=(500, 500))},
        {"policy": RolloutPolicy(steps=(WEIGHT_TOTAL,))},
        {"policy": RolloutPolicy(hold_s=-1.0)},
        {"cache_entries": -1},
        {"route_by": "no header"},
        {"route_by": "x-holdfast-version"},
        {"name": "no/slash"},
    ],
)
def test_numbers_that_make_no_sense_are_refused(
    services: Services, wrong: dict[str, object]
) -> None:
    with pytest.raises(Usage):
        services.create(digits(**wrong))
    assert services.services() == {}


# --- changing ---------------------------------------------------------------------------------


def test_each_change_is_counted_and_told(services: Services) -> None:
    services.create(digits())
    services.update("it", lambda one: replace(one, cache_entries=10), "a cache")
    services.scale("it", 3)
    after = services.scale("it", None)
    assert (after.revision, after.cache_entries, after.replicas_wanted) == (4, 10, None)
    assert [each.reason.removeprefix("anna asked: ") for each in services.history("it")] == [
        "serve digits@prod",
        "a cache",
        "scale to 3",
        "scale to as its load asks",
    ]


def test_two_users_at_once_lose_no_change(address: str, services: Services) -> None:
    services.create(digits())

    def change() -> None:
        with connect(address) as own:
            for _ in range(10):
                Services(own).update(
                    "it", lambda one: replace(one, cache_entries=one.cache_entries + 1), "one more"
                )

    users = [threading.Thread(target=change) for _ in range(3)]
    for user in users:
        user.start()
    for user in users:
        user.join()
    after = services.service("it")
    assert (after.cache_entries, after.revision) == (30, 31)
    assert len(services.history("it")) == 31


def test_what_its_job_is_made_of_never_changes(services: Services) -> None:
    services.create(digits())
    changes: list[dict[str, Any]] = [
        {"model": "other"},
        {"resources": Resources(cpu=2.0)},
        {"priority": 7},
    ]
    for change in changes:
        with pytest.raises(Refused, match=f"the {next(iter(change))} of service it cannot change"):
            services.update("it", lambda one: replace(one, **change), "no")  # noqa: B023
    assert services.service("it").revision == 1


def test_a_rollout_moves_the_target_and_takes_a_rollback_and_a_split_back(
    services: Services,
) -> None:
    services.create(digits())
    services.pin("it", 1)
    assert services.service("it").pinned == 1
    after = services.rollout("it", "2")
    assert (after.target, after.pinned, after.split) == ("2", None, {})
    services.split("it", {1: 1, 2: 1})
    after = services.rollout("it")
    assert (after.target, after.split) == ("2", {})
    with pytest.raises(Missing, match="has no version 9"):
        services.rollout("it", "9")


def test_a_rollout_asks_the_plane_for_each_thing_once(
    services: Services, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    services.create(digits())
    here, sent = threading.current_thread(), []
    attempt = session.nodes.attempt

    def counted(*given: Any, **more: Any) -> Any:
        if threading.current_thread() is here:
            sent.append(given)
        return attempt(*given, **more)

    monkeypatch.setattr(session.nodes, "attempt", counted)
    services.rollout("it", "2")
    # The service, the version, what was asked before; and one transaction.
    assert len(sent) == 4


def test_the_same_target_again_is_asked_again_so_that_what_failed_is_tried(
    services: Services,
) -> None:
    made = services.create(digits())
    after = services.rollout("it")
    assert after.revision == made.revision + 1
    assert after.version_revision == made.version_revision + 1


def test_a_rollback_goes_to_the_version_before(services: Services, session: Session) -> None:
    services.create(digits())
    decide(session, STEADY)
    assert services.rollback("it").pinned == 1


def test_a_rollback_in_the_middle_of_a_rollout_goes_to_the_stable_version(
    services: Services, session: Session
) -> None:
    services.create(digits())
    variants = (Variant("stable", 1, 9_500), Variant("next", 2, 500))
    decide(session, RolloutPlan(5, RolloutStage.SHIFTING, (1, 2), variants, 1, None, 2))
    assert services.rollback("it").pinned == 1


def test_there_is_no_way_back_from_the_first_version(services: Services, session: Session) -> None:
    services.create(digits())
    with pytest.raises(Refused, match="no version to go back to"):
        services.rollback("it")
    decide(session, replace(STEADY, previous=None))
    with pytest.raises(Refused, match="it has served one version only"):
        services.rollback("it")


def test_a_split_is_kept_in_parts_of_the_whole(services: Services) -> None:
    services.create(digits())
    assert services.split("it", {2: 1, 1: 2}).split == {1: 6_667, 2: 3_333}
    assert services.split("it", {}).split == {}
    with pytest.raises(Refused, match="retired"):
        services.split("it", {1: 1, 3: 1})


@pytest.mark.parametrize("weights", [{1: 0.0}, {1: -1.0, 2: 2.0}, {1: float("nan")}])
def test_weights_that_are_none_are_refused(weights: dict[int, float]) -> None:
    with pytest.raises(Usage):
        checked.weights(weights)


@pytest.mark.parametrize("weights", [{1: 1 / 3, 2: 1 / 3, 3: 1 / 3}, {7: 1e-9, 8: 1.0}, {4: 5}])
def test_weights_make_the_whole_and_the_largest_comes_first(weights: dict[int, float]) -> None:
    parts = checked.weights(weights)
    assert sum(parts.values()) == WEIGHT_TOTAL
    assert list(parts.values()) == sorted(parts.values(), reverse=True)


# --- keys -------------------------------------------------------------------------------------


def test_of_an_api_key_only_its_digest_is_kept(services: Services, session: Session) -> None:
    services.create(digits())
    key = services.add_key("it")
    fact = Facts(session).read(service_path("it"))
    assert fact is not None and key.encode() not in fact.data
    assert services.service("it").keys == (key_digest(key),)
    other = services.add_key("it")
    assert key != other
    assert services.remove_key("it", key).keys == (key_digest(other),)
    assert services.remove_key("it", key_digest(other)[:8]).keys == ()
    with pytest.raises(Missing, match="has no such key"):
        services.remove_key("it", key)


# --- the end ----------------------------------------------------------------------------------


def test_a_removed_service_leaves_nothing_and_its_name_is_free(
    services: Services, session: Session
) -> None:
    services.create(digits())
    decide(session, STEADY)
    shown = Replica("it", 1, "127.0.0.1", 1, 2)
    member = Membership(session, replicas_path("it")).join("1", document(shown))
    assert services.replicas("it") == {1: shown}
    control = ControlPlane(session)
    assert not services.stop("it")
    assert control.job(job_name("it")).intent is Intent.STOP
    with pytest.raises(Refused, match="it still has replicas"):
        services.remove("it")
    member.leave()
    wipe(session, f"/holdfast/jobs/{job_name('it')}")  # as the coordinator and `forget` do
    assert services.stop("it")
    services.remove("it")
    assert session.nodes.children(SERVICES) == []
    with pytest.raises(Missing, match="there is no service it"):
        services.service("it")
    services.create(digits())


def test_what_a_late_replica_has_left_does_not_keep_the_name(
    services: Services, session: Session
) -> None:
    member = Membership(session, replicas_path("it")).join(
        "9", document(Replica("it", 9, "h", 1, 2))
    )
    assert services.services() == {}
    member.leave()
    assert services.create(digits()).revision == 1
