"""`holdfast services`, `rollout`, `rollback`, `split`, `unserve`, `key`: what is served, and how it
changes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from holdfast.cli import absence, completion, output
from holdfast.cli.options import ClusterOption, JsonOption, client_of
from holdfast.client import texts
from holdfast.client.service_status import ObservedService, variants_of
from holdfast.wire.errors import Missing, Usage
from holdfast.wire.plain import plain_of

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.serve.records import (
        BreakerPolicy,
        Gateway,
        Guards,
        Limits,
        Replica,
        RolloutPolicy,
        ServiceSpec,
    )

SERVICES_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast services[/]              what is served, which versions, by how many replicas

  [cyan]holdfast services digits[/]       everything about one: replicas, variants, keys

  [cyan]holdfast services --json | jq '.services[] | {name, version, ready}'[/]
"""
ROLLOUT_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast rollout digits 4[/]           version 4, in the steps that `serve --canary` gave

  [cyan]holdfast rollout digits prod[/]        whatever the alias prod names, now and later

  [cyan]holdfast rollout digits --watch[/]     the same target again; ends with 1 if it fails
"""
ROLLBACK_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast rollback digits[/]      at once: the version before is still loaded
"""
SPLIT_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast split digits 3=90 4=10[/]    an A/B test; users stay in their variant

  [cyan]holdfast split digits[/]              no split any more: the target serves everything
"""
UNSERVE_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast unserve digits[/]       its replicas answer what they have begun, and leave
"""
KEY_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast key add digits[/]             a new key, shown once

  [cyan]holdfast key add digits --operator[/]  opens load and unload of Triton's clients, no more

  [cyan]holdfast key remove digits 5f21c9[/]   by the first letters of its SHA-256
"""
# Of a service whose controller is away.
_ALONE: Final = "no rollout controller"
# Letters of a key's SHA-256 that tell it from others.
_KEY_LETTERS: Final = 12

ServiceArgument = Annotated[
    str,
    typer.Argument(
        metavar="SERVICE", help="The service's name.", autocompletion=completion.services
    ),
]
WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Return when it is done.")]

keys = typer.Typer(
    name="key", help="API keys of a service.", no_args_is_help=True, epilog=KEY_EXAMPLES
)
PREDICT_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast predict digits '{"x": [[0.1, 0.2]]}'[/]

  [cyan]holdfast predict digits @request.json --user anna[/]

  [cyan]cat request.json | holdfast predict digits - --key hf_…[/]
"""


def services(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[SERVICE]", help="One in full.", autocompletion=completion.services
        ),
    ] = None,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """List what is served: stage, version and share of each variant, replicas, and why."""
    with client_of(cluster) as client:
        found = client.found
        known = client.services() if name is None else {name: client.service(name)}
        names = list(known)
        seen = [each.observe() for each in known.values()]
        nobody = absence.absent(found, absence.ROLLOUT_CONTROLLER) if names else None
        missing = absence.warnings(found, services=bool(names))
    if as_json:
        shown = [{**document(observed), "conducted": nobody is None} for observed in seen]
        more = {"missing": missing}
        output.show_json({**shown[0], **more} if name is not None else {"services": shown, **more})
        return
    if name is not None:
        _show_one(seen[0], alone=nobody is not None)
        absence.warn(missing)
        return
    if not seen:
        output.note("nothing is served. Serve a model: holdfast serve MODEL")
        absence.warn(missing)
        return
    columns = ["service", "model", "stage", "version", "previous", "ready", "since", "why"]
    rows = [_row(observed, alone=nobody is not None) for observed in seen]
    output.show_table(columns, rows, right=("ready", "since"), drop=("previous", "since", "model"))
    _show_gateways(seen[0])
    absence.warn(missing)


def rollout(
    name: ServiceArgument,
    target: Annotated[
        str | None,
        typer.Argument(metavar="[VERSION|ALIAS]", help="What to serve; else the same again."),
    ] = None,
    watch: WatchOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Roll a version out: load it beside the old one, shift the requests step by step, and take it
    back by itself if it does worse."""
    with client_of(cluster) as client:
        service = client.service(name)
        wanted = service.rollout(target)
        if watch:
            with absence.progress(name) as show:
                service.wait_settled(progress=show)
            output.done(
                f"{name} serves version {variants_of(service.observe().plan)}",
                f"holdfast services {name}   and back: holdfast rollback {name}",
            )
            return
        observed = service.observe()
    version = f" (version {observed.wanted})" if wanted.target != str(observed.wanted) else ""
    output.done(
        f"{name} goes to {wanted.model}@{wanted.target}{version}",
        f"holdfast why {name} -f   and back: holdfast rollback {name}",
    )


def rollback(name: ServiceArgument, cluster: ClusterOption = None) -> None:
    """Go back to the version before, at once. It holds until the next `holdfast rollout`."""
    with client_of(cluster) as client:
        service = client.service(name)
        after = service.rollback()
        with absence.progress(name) as show:
            service.wait_settled(progress=show)
        observed = service.observe()
    output.done(
        f"{name} serves version {variants_of(observed.plan)} again, and stays with it",
        f"holdfast rollout {name}   goes to {after.model}@{after.target}",
    )


def split(
    name: ServiceArgument,
    weights: Annotated[
        list[str] | None, typer.Argument(metavar="VERSION=WEIGHT…", help="None: no split.")
    ] = None,
    watch: WatchOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Serve several versions side by side, by weight: an A/B test. Users stay in their variant."""
    parts = _weights(weights or [])
    with client_of(cluster) as client:
        service = client.service(name)
        after = service.split(parts)
        if watch:
            with absence.progress(name) as show:
                service.wait_settled(progress=show)
    shares = ", ".join(f"version {n} {part / 100:g} %" for n, part in after.split.items())
    output.done(
        f"{name}: {shares}" if shares else f"{name} is not split any more",
        f"holdfast services {name}",
    )


def unserve(name: ServiceArgument, cluster: ClusterOption = None) -> None:
    """End a service: its replicas answer what they have begun, and leave. Its model stays.

    With the last service also the gateway and the controller end that `holdfast serve` had started
    on this machine. The next `holdfast serve` starts them again.
    """
    from holdfast.cli.serve.output import ended_words
    from holdfast.client.serving import end_processes

    with client_of(cluster) as client:
        try:
            service = client.service(name)
        except Missing:
            # One that was interrupted, or was given on another machine, left them.
            with absence.progress(name) as show:
                stopped = end_processes(client.found, show)
            if not stopped.names:
                raise
            output.done(ended_words(stopped))
            return
        with absence.progress(name) as show:
            stopped = service.stop(progress=show)
    output.done(f"{name} is not served any more")
    if ended := ended_words(stopped):
        output.done(ended)


@keys.command("add", epilog=KEY_EXAMPLES)
def key_add(
    name: ServiceArgument,
    operator: Annotated[
        bool, typer.Option("--operator", help="For load and unload alone; requests need none.")
    ] = False,
    cluster: ClusterOption = None,
) -> None:
    """Make a new API key. It is shown once; from now on requests need one."""
    with client_of(cluster) as client:
        made = client.service(name).add_key(operator=operator)
    output.done(made, f"curl -H 'x-api-key: {made[:6]}…' …   holdfast services {name}")


@keys.command("remove", epilog=KEY_EXAMPLES)
def key_remove(
    name: ServiceArgument,
    key: Annotated[str, typer.Argument(help="The key, or the first letters of its SHA-256.")],
    cluster: ClusterOption = None,
) -> None:
    """Forget an API key. Without any, requests need none."""
    with client_of(cluster) as client:
        left = client.service(name).remove_key(key).keys
    output.done(f"{name} has {texts.many(len(left), 'key')} left")


# --- showing --------------------------------------------------------------------------------------


def document(observed: ObservedService) -> dict[str, Any]:
    """A service as JSON."""
    service, plan = observed.service, observed.plan
    variants = [plain_of(variant) for variant in plan.variants] if plan else []
    number = plan.number if plan else 0
    return {
        "name": service.name,
        "model": service.model,
        "target": service.target,
        "wanted": observed.wanted,
        "version": plan.stable if plan else None,
        "previous": plan.previous if plan else None,
        "next": plan.next if plan else None,
        "stage": plan.stage.value if plan else "",
        "since_s": plan.since_s if plan else None,
        "reason": plan.reason if plan else "",
        "variants": variants,
        "arms": variants,  # what they were called, for one release
        "failed": {str(n): why for n, why in plan.failed.items()} if plan else {},
        "pinned": service.pinned,
        "replicas_min": service.replicas_min,
        "replicas_max": service.replicas_max,
        "replicas_wanted": plan.replicas if plan else service.replicas_min,
        "ready": observed.ready(plan.stable if plan else None),
        "replicas": [plain_of(one) for _, one in sorted(observed.replicas.items())],
        "gateways": {
            name: {
                "address": one.address,
                "region": one.region,
                "applied": one.applied.get(service.name, 0),
                "why": one.why,
                "breakers": {
                    str(worker): plain_of(state)
                    for worker, state in sorted(one.breakers.get(service.name, {}).items())
                },
            }
            for name, one in sorted(observed.gateways.items())
        },
        "plan": number,
        "course": number,  # what it was called, for one release
        "settings": {
            "rollout": plain_of(service.policy),
            "guards": plain_of(service.guards),
            "limits": plain_of(service.limits),
            "breaker": plain_of(service.breaker),
            "predictions": plain_of(service.predictions),
        },
        "keys": [key[:_KEY_LETTERS] for key in service.keys],
        "operator_keys": [key[:_KEY_LETTERS] for key in service.operator_keys],
        "dropped": observed.dropped(),
        "job": observed.doing,
    }


def _row(observed: ObservedService, *, alone: bool) -> tuple[object, ...]:
    service, plan = observed.service, observed.plan
    why = texts.one_line(plan.reason) if plan and observed.replicas else observed.doing
    why = f"{_ALONE}; before: {why}" if alone else why
    wanted = plan.replicas if plan else service.replicas_min
    version = plan.stable if plan else None
    return (
        service.name,
        f"{service.model}@{service.target}",
        _stage(observed, alone=alone) if plan else "-",
        variants_of(plan),
        plan.previous if plan and plan.previous is not None else "-",
        f"{observed.ready(version)}/{wanted}",
        texts.ago(plan.since_s) if plan else "-",
        why,
    )


def _stage(observed: ObservedService, *, alone: bool) -> str:
    """Where its rollout is, as far as somebody decides about it."""
    if observed.plan is None:
        return "nothing is decided yet"
    stage = observed.plan.stage.value
    return f"{stage}?" if alone else stage


def _show_one(observed: ObservedService, *, alone: bool = False) -> None:
    service, plan = observed.service, observed.plan
    least, most = service.replicas_min, service.replicas_max
    span = f"{least} to {most} by its load" if least != most else f"always {most}"
    count = "" if service.replicas_wanted is None else f", {service.replicas_wanted} wanted"
    shown_keys = ", ".join(key[:_KEY_LETTERS] for key in service.keys)
    output.show_facts(
        [
            ("service", service.name),
            ("model", f"{service.model}@{service.target}"),
            ("pinned", "" if service.pinned is None else f"version {service.pinned}"),
            ("stage", _stage(observed, alone=alone) + (f" ({_ALONE})" if alone else "")),
            ("version", variants_of(plan)),
            ("previous", "" if plan is None or plan.previous is None else plan.previous),
            ("why", plan.reason if plan else observed.doing),
            ("replicas", f"{len(observed.replicas)} ({span}{count})"),
            ("job", f"serve.{service.name} is {observed.doing}"),
            *setting_rows(service),
            ("dropped", observed.dropped()),
            ("keys", shown_keys),
            ("operators", ", ".join(key[:_KEY_LETTERS] for key in service.operator_keys)),
        ]
    )
    for version, why in sorted(plan.failed.items() if plan else ()):
        output.show_facts([(f"{version} failed", output.with_own_paths(why))])
    if observed.replicas:
        output.out().print()
        columns = ["replica", "node", "region", "address", "versions", "breaker", "since"]
        rows = [_replica_row(one, observed) for _, one in sorted(observed.replicas.items())]
        output.show_table(columns, rows, right=("replica",), drop=("region", "since"))
    _show_gateways(observed)
    output.note(
        f"its story: holdfast why {service.name}   its output: holdfast logs serve.{service.name}"
    )


def _replica_row(one: Replica, observed: ObservedService) -> tuple[object, ...]:
    versions = ", ".join(f"{n} {held.state.value}" for n, held in sorted(one.versions.items()))
    return (
        one.worker,
        one.node or "-",
        one.region or "-",
        f"{one.host}:{one.http_port}",
        f"draining; {versions}" if one.draining else versions or "-",
        breaker_of(observed.gateways, observed.name, one.worker),
        texts.ago(one.started_s),
    )


def _show_gateways(observed: ObservedService) -> None:
    if not observed.gateways:
        output.note("no gateway is here: holdfast serve starts one")
        return
    shown = [
        f"{name} {one.address}" + (f" ({one.region})" if one.region else "")
        for name, one in sorted(observed.gateways.items())
    ]
    output.note(f"gateways: {', '.join(shown)}")
    for name, one in sorted(observed.gateways.items()):
        if one.why:
            output.note(f"gateway {name} stays as it is: {one.why}")


def _weights(words: list[str]) -> dict[int, float]:
    parts: dict[int, float] = {}
    for word in words:
        version, equals, weight = word.partition("=")
        try:
            parts[int(version)] = float(weight.rstrip("%"))
        except ValueError:
            equals = ""
        if not equals:
            raise Usage(f"{word!r} is not VERSION=WEIGHT", fix="holdfast split SERVICE 3=90 4=10")
    return parts


def scaled(client: Client, name: str, count: int | None) -> None:
    """`holdfast scale SERVICE N|auto`."""
    client.service(name).scale(count)
    many = (
        "as many replicas as its load asks for" if count is None else texts.many(count, "replica")
    )
    output.done(f"{name} is to have {many}", f"holdfast services {name}")
    absence.warn(absence.warnings(client.found, services=True))


def predict(
    name: Annotated[
        str,
        typer.Argument(
            metavar="SERVICE", help="The service's name.", autocompletion=completion.services
        ),
    ],
    body: Annotated[
        str, typer.Argument(metavar="JSON|@FILE|-", help="Inputs by name, or the only one's list.")
    ],
    version: Annotated[int | None, typer.Option(min=1, help="Exactly this one.")] = None,
    user: Annotated[str | None, typer.Option(help="Who asks: a variant keeps its users.")] = None,
    entity: Annotated[
        str | None, typer.Option(help="What it is about: the same replica answers (--route-by).")
    ] = None,
    key: Annotated[str | None, typer.Option(help="The API key, if it asks for one.")] = None,
    cluster: ClusterOption = None,
) -> None:
    """Ask a service through its gateway, and print the answer; which version and replica, too."""
    text = sys.stdin.read() if body == "-" else body
    if body.startswith("@"):
        text = Path(body[1:]).read_text()
    with client_of(cluster) as client:
        service = client.service(name)
        answer = service.answer(text, version=version, user=user, entity=entity, key=key)
    sys.stdout.write(answer.text.rstrip("\n") + "\n")
    marks = (("version", answer.version), ("variant", answer.variant), ("replica", answer.replica))
    output.note(", ".join(f"{word} {mark}" for word, mark in marks if mark not in (None, "")))


def setting_rows(service: ServiceSpec) -> list[tuple[str, str]]:
    """What `holdfast serve` can change, in words."""
    limits = service.limits
    return [
        ("rollouts", _rollouts(service.policy)),
        ("taken back", _thresholds(service.policy)),
        ("guards", _guards(service.guards)),
        ("limits", _limits(limits)),
        ("rate", f"{limits.rate_per_s:g} a second" if limits.rate_per_s else ""),
        ("breakers", _breakers(service.breaker)),
        ("predictions", _predictions(service)),
        ("route by", service.route_by),
    ]


def breaker_of(gateways: Mapping[str, Gateway], service: str, replica: int) -> str:
    """Whether gateways send to this replica: the words of those that do not, else closed."""
    known = [
        (name, one.breakers[service][replica])
        for name, one in sorted(gateways.items())
        if replica in one.breakers.get(service, {})
    ]
    if not known:
        return "closed" if gateways else "-"
    worst = {"open": 0, "half-open": 1, "closed": 2}
    name, state = min(known, key=lambda each: worst[each[1].state.value])
    who = f" at {name}" if len(gateways) > 1 else ""
    return f"{state.state.value}{who} since {texts.clock(state.since_s)}"


def _rollouts(policy: RolloutPolicy) -> str:
    steps = ", ".join(f"{step / 100:g} %" for step in policy.steps) or "all at once"
    return f"{steps}; each for {policy.hold_s:g} s; loaded within {policy.ready_s:g} s"


def _thresholds(policy: RolloutPolicy) -> str:
    ratio, slack_ms = policy.latency_ratio_max, policy.latency_slack_ms
    return (
        f"{_percent(policy.error_rate_max)} more errors; a p99 {ratio:g} times as long and "
        f"{slack_ms:g} ms more; not before {policy.requests_min} requests"
    )


def _guards(guards: Guards) -> str:
    parts = []
    if guards.nonfinite_max is not None:
        parts.append(f"NaN or infinity {_above(guards.nonfinite_max)}")
    parts += [
        f"{output} outside of {low:g} to {high:g} {_above(guards.outside_max)}"
        for output, (low, high) in sorted(guards.ranges.items())
    ]
    if guards.shift_max is not None:
        parts.append(f"a shift above {guards.shift_max:g} standard deviations")
    if guards.disagree_max is not None:
        parts.append(f"another class in more than {_percent(guards.disagree_max)}")
    if guards.compares:
        parts.append(f"compared in {_percent(guards.shadow_share)} of a replica's time")
    return "; ".join(parts) or "off"


def _limits(limits: Limits) -> str:
    from holdfast.control.decide import units

    return (
        f"an answer within {limits.timeout_s:g} s; {limits.queue_max} requests wait in a replica,"
        f" for {limits.patience_s:g} s; a body of {units.size_of(limits.body_bytes_max)}"
    )


def _breakers(breaker: BreakerPolicy) -> str:
    return (
        f"open after {breaker.failures} broken requests, for {breaker.open_s:g} to"
        f" {breaker.open_s_max:g} s; up to {breaker.retry_percent:g} % of requests are tried again"
    )


def _predictions(service: ServiceSpec) -> str:
    from holdfast.control.decide import units

    policy = service.predictions
    parts = ["to a file"] if service.log_predictions else []
    if policy.topic:
        share = "" if policy.sample >= 1 else f"{_percent(policy.sample)} "
        kept = units.duration_of(policy.keep_s)
        size = units.size_of(policy.blob_bytes)
        parts.append(
            f"{share}to predictions.{service.name}, kept for {kept}; larger than {size}: to blobs"
        )
    if parts and policy.redact:
        parts.append(f"without {', '.join(policy.redact)}")
    if policy.topic and policy.keys:
        parts.append(f"about {', '.join(policy.keys)}")
    return "; ".join(parts)


def _above(share: float) -> str:
    """Of what is compared with the version that serves."""
    return f"in {_percent(share)} more of the answers" if share else "in more answers than before"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
