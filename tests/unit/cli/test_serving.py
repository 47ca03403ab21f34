"""What commands say of a service, and when they have waited long enough."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.cli.serve import services
from holdfast.client.predicting import refusal
from holdfast.client.serve_settings import _counts, _seconds, _steps, changed, changes
from holdfast.client.service_status import ObservedService, variants_of
from holdfast.serve.records import (
    WEIGHT_TOTAL,
    Gateway,
    Load,
    Loaded,
    Replica,
    RolloutPlan,
    RolloutStage,
    ServiceSpec,
    Variant,
)
from holdfast.wire.errors import Usage
from tests.unit.cli.running import holdfast

SERVICE = ServiceSpec("it", "digits", "2", revision=3)
VARIANT = Variant("stable", 2, WEIGHT_TOTAL)
PLAN = RolloutPlan(
    7, RolloutStage.STEADY, (2, 1), (VARIANT,), 2, 1, revision=3, reason="version 2 is ready"
)
READY = Replica("it", 1, "h", 1, 2, versions={2: Loaded(Load.READY)})
GATEWAY = Gateway("g", "", "http://127.0.0.1:8080", {"it": 7})
SIGHT = ObservedService(SERVICE, PLAN, {1: READY}, {"g": GATEWAY}, 2, "running: on 1 replica")


@pytest.mark.parametrize(
    ("said", "why", "fix"),
    [
        (
            '{"error": "no input z\\nwhy: the inputs are x\\nfix: ask for them"}',
            "no input z\nthe inputs are x",
            "ask for them",
        ),
        ('{"error": "it failed:\\n  line 2"}', "it failed:\n  line 2", "holdfast why it"),
        ("upstream connect error: 111\n", "upstream connect error: 111", "holdfast why it"),
        ('{"error": ""}', "", "holdfast why it"),
        ("[1]", "[1]", "holdfast why it"),
    ],
)
def test_a_refused_request_is_told_in_the_words_of_the_service(
    said: str, why: str, fix: str
) -> None:
    error = refusal("it", 400, said)
    assert (error.what, error.why, error.fix) == ("it answered 400", why, fix)


def test_it_has_settled_when_every_gateway_sends_to_what_is_wanted() -> None:
    assert SIGHT.settled()


@pytest.mark.parametrize(
    "observed",
    [
        replace(SIGHT, plan=None),
        replace(SIGHT, plan=replace(PLAN, revision=2)),  # it has not seen what was asked
        replace(SIGHT, plan=replace(PLAN, variants=())),
        replace(SIGHT, wanted=3),
        replace(SIGHT, gateways={}),
        replace(SIGHT, gateways={"g": GATEWAY, "h": replace(GATEWAY, applied={"it": 6})}),
        replace(SIGHT, plan=replace(PLAN, stage=RolloutStage.SHIFTING)),
        replace(SIGHT, service=replace(SERVICE, split={1: 5_000, 2: 5_000})),
    ],
)
def test_it_has_not_settled_before(observed: ObservedService) -> None:
    assert not observed.settled()


def test_a_version_that_was_taken_back_is_told_once_the_controller_has_seen_what_was_asked() -> (
    None
):
    failed = replace(PLAN, failed={4: "it needs a GPU"})
    assert replace(SIGHT, plan=failed, wanted=4).failed() == "it needs a GPU"
    assert replace(SIGHT, plan=failed, wanted=2).failed() == ""
    assert replace(SIGHT, plan=replace(failed, revision=2), wanted=4).failed() == ""


def test_what_is_waited_for_is_said() -> None:
    assert SIGHT.progress() == "1 of 1 replica ready with version 2; version 2 is ready"
    assert replace(SIGHT, replicas={}).progress() == "no replica yet: running: on 1 replica"
    assert replace(SIGHT, wanted=9).progress().startswith("0 of 1 replica ready with version 9")


def test_arms_are_said_with_their_shares() -> None:
    assert variants_of(None) == "-"
    assert variants_of(PLAN) == "2"
    two = replace(PLAN, variants=(Variant("stable", 2, 9_500), Variant("next", 3, 500)))
    assert variants_of(two) == "2 95 %, 3 5 %"


def test_a_service_as_json_holds_no_key() -> None:
    told = services.document(replace(SIGHT, service=replace(SERVICE, keys=("ab" * 32,))))
    assert told["keys"] == ["abababababab"]
    assert (told["version"], told["ready"], told["stage"]) == (2, 1, "steady")


def test_what_was_not_given_stays_as_it_was() -> None:
    after = changed(SERVICE, changes({"cache": 5, "hold": "9s"}))
    assert (after.cache_entries, after.redis, after.policy.hold_s) == (5, "", 9.0)
    assert after.policy.steps == SERVICE.policy.steps
    by_key = changed(after, changes({"route_by": "X-Customer"}))
    assert by_key.route_by == "x-customer"
    assert changed(by_key, changes({"cache": 1})).route_by == "x-customer"
    assert changed(by_key, changes({"route_by": "off"})).route_by == ""


def test_words_of_the_command_line_become_numbers() -> None:
    assert _steps("1,10%, 50") == (100, 1_000, 5_000)
    assert (_steps("no"), _steps(None)) == ((), None)
    assert (_seconds("--hold", "2m"), _seconds("--hold", "30"), _seconds("--hold", None)) == (
        120.0,
        30.0,
        None,
    )
    assert _counts(None, 2, 8) == {"replicas_min": 2, "replicas_max": 8}
    assert _counts(3, None, None) == {"replicas_min": 3, "replicas_max": 3}
    for wrong in ("half", "5;10"):
        with pytest.raises(Usage, match="--canary"):
            _steps(wrong)
    with pytest.raises(Usage, match="--hold"):
        _seconds("--hold", "soon")


@pytest.mark.parametrize("words", [("serve",), ("services",), ("rollout",), ("split",), ("key",)])
def test_every_command_shows_examples(words: tuple[str, ...]) -> None:
    said = holdfast(*words, "--help")
    assert said.returncode == 0
    assert "Examples" in said.stdout and f"holdfast {words[0]}" in said.stdout


def test_what_is_missing_in_the_topic_of_predictions_is_said_with_its_cause() -> None:
    assert SIGHT.dropped() == ""
    lost = replace(READY, predictions_dropped=3, predictions_trouble="the broker is away")
    seen = replace(SIGHT, replicas={1: lost, 2: replace(READY, predictions_dropped=1)})
    assert seen.dropped() == (
        "4 predictions dropped; every request was answered; now: the broker is away"
    )
    over = replace(SIGHT, replicas={1: replace(lost, predictions_trouble="")})
    assert over.dropped() == "3 predictions dropped; every request was answered"
