"""Every limit that an error or a reason of serving names is set by the command that it names.

Each is made by the code that makes it for people, and the command is given to the command line.
"""

from __future__ import annotations

import ast
import asyncio
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

from holdfast.cli.main import app
from holdfast.client import serve_settings
from holdfast.serve import checked, settings
from holdfast.serve.protocol.errors import too_large
from holdfast.serve.records import (
    BreakerPolicy,
    Compared,
    Guards,
    Limits,
    OutputStats,
    PredictionPolicy,
    RolloutPolicy,
    ServiceSpec,
)
from holdfast.serve.replica.batching import Batcher, BatchPace
from holdfast.serve.replica.engine import Engine
from holdfast.serve.replica.http import App
from holdfast.serve.rollout import verdict
from holdfast.serve.rollout.facts import Fleet, RolloutContext, ServiceObservation
from holdfast.wire.errors import HoldfastError
from tests.unit.serve.rollout.facts import (
    NAME,
    NOW_S,
    counts,
    desired,
    loading,
    shifting,
    three,
    window,
)

ROOT = Path(__file__).parents[3]
SERVICE = ServiceSpec(NAME, NAME, "prod")


def raised(call: Callable[[], object]) -> str:
    with pytest.raises(HoldfastError) as error:
        call()
    return str(error.value)


def batcher(**limits: Any) -> Batcher:
    made = Batcher(
        "m@1",
        lambda inputs: {},
        Limits(**limits),
        batches=False,
        pace=BatchPace.SHORT,
        service=NAME,
    )
    made._jobs = 600
    return made


def too_many_bodies() -> None:
    front = App(Engine(SERVICE))
    front.bodies = SERVICE.limits.bodies_bytes_max
    front._reserve(None, SERVICE.limits.body_bytes_max)


def trouble_in(plan: Any, **by_version: Any) -> str:
    old, new = by_version.get("v1", counts(500)), by_version.get("v2", counts(500))
    observed = ServiceObservation(plan, three(1, 2), window=window(plan, v1=old, v2=new))
    context = RolloutContext(desired(2), observed, NOW_S, plan, Fleet(observed.replicas))
    return verdict.trouble_with(context, 2)


def late() -> str:
    plan = loading(since_s=NOW_S - 600.0)
    observed = ServiceObservation(plan, three(1, loading=(2,)))
    wanted = desired(2, policy=RolloutPolicy())
    return verdict.trouble_with(
        RolloutContext(wanted, observed, NOW_S, plan, Fleet(observed.replicas)), 2
    )


def guard(new: OutputStats, **guards: Any) -> str:
    guarded = replace(SERVICE, guards=Guards(**guards))
    return verdict.broken_guard(guarded, OutputStats(100), new, patient=True)


# Each: how it comes about, and what its command changes; by the option that it names.
NAMED: dict[str, tuple[Callable[[], str], Callable[[ServiceSpec], object]]] = {
    settings.QUEUE: (
        lambda: raised(batcher(queue_max=600).check_capacity),
        lambda service: service.limits.queue_max,
    ),
    settings.WAIT: (lambda: raised(slow().check_capacity), lambda service: service.limits.wait_s),
    settings.TIMEOUT: (
        lambda: str(batcher()._timed_out()),
        lambda service: service.limits.timeout_s,
    ),
    settings.BODY: (
        lambda: str(too_large(SERVICE, 100_000_000)),
        lambda service: service.limits.body_bytes_max,
    ),
    settings.BODIES: (
        lambda: raised(too_many_bodies),
        lambda service: service.limits.bodies_bytes_max,
    ),
    settings.ERRORS: (
        lambda: trouble_in(shifting(500), v2=counts(100, errors=10)),
        lambda service: service.policy.error_rate_max,
    ),
    settings.SLOWER: (
        lambda: trouble_in(shifting(500), v2=counts(1_000, slow=100)),
        lambda service: service.policy.latency_ratio_max,
    ),
    settings.READY: (late, lambda service: service.policy.ready_s),
    settings.NONFINITE: (
        lambda: guard(OutputStats(100, {"y": 9})),
        lambda service: service.guards.nonfinite_max,
    ),
    settings.OUTSIDE: (
        lambda: guard(OutputStats(100, outside={"y": 9}), ranges={"y": (0.0, 1.0)}),
        lambda service: service.guards.outside_max,
    ),
    settings.SHIFT: (
        lambda: guard(
            OutputStats(100, compared={"y": Compared(50, 50, 0.0, 50.0, 200.0, 900.0)}),
            shift_max=0.1,
        ),
        lambda service: service.guards.shift_max,
    ),
    settings.DISAGREE: (
        lambda: guard(
            OutputStats(100, compared={"y": Compared(50, rows=50, disagreed=40)}), disagree_max=0.1
        ),
        lambda service: service.guards.disagree_max,
    ),
}


def slow() -> Batcher:
    made = batcher(queue_max=1_000, timeout_s=8.0)
    made._cost_s = 1.0
    return made


def given_by(command: str) -> tuple[str, dict[str, Any]]:
    """What the command line makes of it: the reference, and the settings of a service."""
    words = shlex.split(command)
    assert words[:2] == ["holdfast", "serve"], command
    root: Any = typer.main.get_command(app)
    with root.make_context("holdfast", ["serve", NAME]) as context:
        made = root.get_command(context, "serve").make_context("serve", words[2:], parent=context)
    given = {name: value for name, value in made.params.items() if value not in (None, ())}
    return str(given["reference"]), serve_settings.changes(given)


@pytest.mark.parametrize("option", NAMED)
def test_the_command_that_an_error_names_sets_the_limit_that_it_names(option: str) -> None:
    make, field = NAMED[option]

    async def run() -> str:
        return make()

    said = asyncio.run(run())
    found = re.findall(rf"holdfast serve {NAME} {option} \S+", said)
    assert len(found) == 1, said
    reference, changes = given_by(found[0])
    after = serve_settings.changed(SERVICE, changes)
    assert reference == NAME
    assert field(after) != field(SERVICE), said
    checked.check(after)
    limit, before = field(after), field(SERVICE)
    assert before is None or limit > before, "what was refused is allowed then"  # type: ignore[operator]


def test_every_option_that_settings_name_is_tried_here() -> None:
    named = {value for key, value in vars(settings).items() if key.isupper() and "--" in str(value)}
    assert named - {settings.RANGE} == NAMED.keys()


@pytest.mark.parametrize(
    "wrong",
    [
        replace(SERVICE, policy=RolloutPolicy(steps=(5_000, 500))),
        replace(SERVICE, policy=RolloutPolicy(hold_s=-1.0)),
        replace(SERVICE, policy=RolloutPolicy(latency_ratio_max=0.5)),
        replace(SERVICE, guards=Guards(nonfinite_max=2.0)),
        replace(SERVICE, guards=Guards(shift_max=-1.0)),
        replace(SERVICE, guards=Guards(ranges={"y": (1.0, 0.0)})),
        replace(SERVICE, limits=Limits(queue_max=0)),
        replace(SERVICE, limits=Limits(wait_s=-1.0)),
        replace(SERVICE, breaker=BreakerPolicy(failures=0)),
        replace(SERVICE, breaker=BreakerPolicy(open_s=5.0, open_s_max=1.0)),
        replace(SERVICE, replicas_min=0),
    ],
)
def test_settings_that_make_no_sense_are_refused_with_options_that_do(wrong: ServiceSpec) -> None:
    with pytest.raises(HoldfastError) as error:
        checked.check(wrong)
    _, changes = given_by(f"holdfast serve {NAME} {error.value.fix}")
    checked.check(serve_settings.changed(wrong, changes))


# Bounds of the protocol itself, which no service can change: errors that name them say what to
# send instead, and no command.
FIXED = {"REQUEST_HEAD_BYTES_MAX", "REQUEST_HEADERS_MAX", "REQUEST_TARGET_BYTES_MAX"}


def named_bounds() -> Iterator[tuple[str, str]]:
    """Constants that stand in a text of replicas or protocols for people."""
    for folder in ("replica", "protocol"):
        for path in sorted((ROOT / "holdfast/serve" / folder).glob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FormattedValue):
                    for name in ast.walk(node.value):
                        if isinstance(name, ast.Name) and re.search(r"_(MAX|MIN|S)$", name.id):
                            yield path.name, name.id


def test_no_error_of_a_replica_names_a_bound_that_nobody_can_set() -> None:
    assert {name for _, name in named_bounds()} == FIXED


def test_what_a_person_gives_is_shown_again() -> None:
    from holdfast.cli.serve import services as service_settings

    words = (
        "holdfast serve digits --canary 1,10 --hold 30s --ready 10m --requests-min 50"
        " --errors-max 2% --slower-max 3 --slower-slack 20ms --guard-nonfinite off"
        " --guard-range y=0:1 --guard-range z=-1:1 --guard-outside 5% --guard-shift 0.5"
        " --guard-disagree 10% --shadow 2% --timeout 3s --queue-max 9 --wait-max 500ms"
        " --body-max 1MiB --bodies-max 2GiB --breaker-failures 7 --breaker-open 3s"
        " --breaker-open-max 30s --connect-timeout 2s --in-flight-max 100 --retries 20%"
        " --log-predictions --predictions-topic --predictions-sample 10%"
        " --predictions-redact name --predictions-redact face --predictions-key user"
        " --predictions-blob 1KiB --predictions-keep 2d"
    )
    reference, changes = given_by(words)
    after = serve_settings.changed(SERVICE, changes)
    assert after.policy == RolloutPolicy((100, 1_000), 30.0, 600.0, 50, 0.02, 3.0, 20.0)
    ranges = {"y": (0.0, 1.0), "z": (-1.0, 1.0)}
    assert after.guards == Guards(None, ranges, 0.05, 0.5, 0.1, 0.02)
    assert after.limits == Limits(9, 64, 2**20, 3.0, 0.0, 0.5, 2**31)
    assert after.breaker == BreakerPolicy(7, 3.0, 30.0, 2.0, 100, 20.0)
    policy = PredictionPolicy(True, 0.1, ("name", "face"), ("user",), 1024, 172_800.0)
    assert after.predictions == policy
    checked.check(after)
    told = dict(service_settings.setting_rows(after))
    assert told["rollouts"] == "1 %, 10 %; each for 30 s; loaded within 600 s"
    assert told["taken back"].startswith("2 % more errors; a p99 3 times as long and 20 ms more")
    assert "y outside of 0 to 1 in 5 % more of the answers" in told["guards"]
    assert told["limits"] == (
        "an answer within 3 s; 9 requests wait in a replica, for 0.5 s; a body of 1MiB"
    )
    assert told["breakers"] == (
        "open after 7 broken requests, for 3 to 30 s; up to 20 % of requests are tried again"
    )
    assert told["predictions"] == (
        "to a file; 10 % to predictions.digits, kept for 2d; larger than 1KiB: to blobs;"
        " without name, face; about user"
    )
    off = serve_settings.changed(after, given_by("holdfast serve digits --guard-range off")[1])
    assert off.guards.ranges == {} and off.guards.shift_max == 0.5
    assert reference == "digits"
