"""What commands say of a service, and when they have waited long enough."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.cli.serve import services
from holdfast.client.predicting import refusal
from holdfast.client.serve_settings import _counts, _seconds, _steps, changed, wishes
from holdfast.client.sight import Sight, arms_of
from holdfast.serve.records import (
    WEIGHT_TOTAL,
    Arm,
    Course,
    Gateway,
    Load,
    Loaded,
    Replica,
    Service,
    Stage,
)
from holdfast.wire.errors import Usage
from tests.unit.cli.running import holdfast

SERVICE = Service("it", "digits", "2", asked=3)
ARM = Arm("stable", 2, WEIGHT_TOTAL)
COURSE = Course(7, Stage.STEADY, (2, 1), (ARM,), 2, 1, asked=3, reason="version 2 is ready")
READY = Replica("it", 1, "h", 1, 2, versions={2: Loaded(Load.READY)})
GATEWAY = Gateway("g", "", "http://127.0.0.1:8080", {"it": 7})
SIGHT = Sight(SERVICE, COURSE, {1: READY}, {"g": GATEWAY}, 2, "running: on 1 replica")


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
    "sight",
    [
        replace(SIGHT, course=None),
        replace(SIGHT, course=replace(COURSE, asked=2)),  # it has not seen what was asked
        replace(SIGHT, course=replace(COURSE, arms=())),
        replace(SIGHT, wanted=3),
        replace(SIGHT, gateways={}),
        replace(SIGHT, gateways={"g": GATEWAY, "h": replace(GATEWAY, applied={"it": 6})}),
        replace(SIGHT, course=replace(COURSE, stage=Stage.SHIFTING)),
        replace(SIGHT, service=replace(SERVICE, split={1: 5_000, 2: 5_000})),
    ],
)
def test_it_has_not_settled_before(sight: Sight) -> None:
    assert not sight.settled()


def test_a_version_that_was_taken_back_is_told_once_the_conductor_has_seen_what_was_asked() -> None:
    failed = replace(COURSE, failed={4: "it needs a GPU"})
    assert replace(SIGHT, course=failed, wanted=4).failed() == "it needs a GPU"
    assert replace(SIGHT, course=failed, wanted=2).failed() == ""
    assert replace(SIGHT, course=replace(failed, asked=2), wanted=4).failed() == ""


def test_what_is_waited_for_is_said() -> None:
    assert SIGHT.progress() == "1 of 1 replica ready with version 2; version 2 is ready"
    assert replace(SIGHT, replicas={}).progress() == "no replica yet: running: on 1 replica"
    assert replace(SIGHT, wanted=9).progress().startswith("0 of 1 replica ready with version 9")


def test_arms_are_said_with_their_shares() -> None:
    assert arms_of(None) == "-"
    assert arms_of(COURSE) == "2"
    two = replace(COURSE, arms=(Arm("stable", 2, 9_500), Arm("next", 3, 500)))
    assert arms_of(two) == "2 95 %, 3 5 %"


def test_a_service_as_json_holds_no_key() -> None:
    told = services.document(replace(SIGHT, service=replace(SERVICE, keys=("ab" * 32,))))
    assert told["keys"] == ["abababababab"]
    assert (told["version"], told["ready"], told["stage"]) == (2, 1, "steady")


def test_what_was_not_given_stays_as_it_was() -> None:
    after = changed(SERVICE, wishes({"cache": 5, "hold": "9s"}))
    assert (after.cache_entries, after.redis, after.policy.hold_s) == (5, "", 9.0)
    assert after.policy.steps == SERVICE.policy.steps


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
