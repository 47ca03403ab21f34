"""`holdfast services`, `rollout`, `rollback`, `split`, `unserve`, `key`: what is served, and how it
changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from holdfast.cli import absence, completing, listing, output
from holdfast.cli.opening import ClusterOption, JsonOption, client_of
from holdfast.cli.serve import opening as serving
from holdfast.cli.serve import settings as service_settings
from holdfast.client import texts
from holdfast.client.sight import Sight, arms_of
from holdfast.wire.errors import Missing, Usage
from holdfast.wire.plain import plain_of

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.serve.records import Replica

SERVICES_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast services[/]              what is served, which versions, by how many replicas

  [cyan]holdfast services digits[/]       everything about one: replicas, arms, keys

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

  [cyan]holdfast split digits 3=90 4=10[/]    an A/B test; users stay in their arm

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
# Of a service whose conductor is away.
_ALONE: Final = "nobody conducts"
# Letters of a key's SHA-256 that tell it from others.
_KEY_LETTERS: Final = 12

ServiceArgument = Annotated[
    str,
    typer.Argument(
        metavar="SERVICE", help="The service's name.", autocompletion=completing.services
    ),
]
WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Return when it is done.")]

keys = typer.Typer(
    name="key", help="API keys of a service.", no_args_is_help=True, epilog=KEY_EXAMPLES
)


def services(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[SERVICE]", help="One in full.", autocompletion=completing.services
        ),
    ] = None,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """List what is served: stage, version and share of each arm, replicas, and why."""
    with client_of(cluster) as client:
        found = client.found
        known = client.services() if name is None else {name: client.service(name)}
        names = list(known)
        seen = [each.sight() for each in known.values()]
        nobody = absence.absent(found, absence.CONDUCTOR) if names else None
        missing = absence.warnings(found, services=bool(names))
    if as_json:
        shown = [{**document(sight), "conducted": nobody is None} for sight in seen]
        more = {"missing": missing}
        output.show_json({**shown[0], **more} if name is not None else {"services": shown, **more})
        return
    if name is not None:
        _show_one(seen[0], alone=nobody is not None)
        absence.warn(missing)
        return
    if not seen:
        listing.note("nothing is served. Serve a model: holdfast serve MODEL")
        absence.warn(missing)
        return
    columns = ["service", "model", "stage", "version", "previous", "ready", "since", "why"]
    rows = [_row(sight, alone=nobody is not None) for sight in seen]
    listing.show(columns, rows, right=("ready", "since"), drop=("previous", "since", "model"))
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
            with serving.progress(name) as show:
                service.wait_settled(progress=show)
            serving.done(
                f"{name} serves version {arms_of(service.sight().course)}",
                f"holdfast services {name}   and back: holdfast rollback {name}",
            )
            return
        sight = service.sight()
    version = f" (version {sight.wanted})" if wanted.target != str(sight.wanted) else ""
    serving.done(
        f"{name} goes to {wanted.model}@{wanted.target}{version}",
        f"holdfast why {name} -f   and back: holdfast rollback {name}",
    )


def rollback(name: ServiceArgument, cluster: ClusterOption = None) -> None:
    """Go back to the version before, at once. It holds until the next `holdfast rollout`."""
    with client_of(cluster) as client:
        service = client.service(name)
        after = service.rollback()
        with serving.progress(name) as show:
            service.wait_settled(progress=show)
        sight = service.sight()
    serving.done(
        f"{name} serves version {arms_of(sight.course)} again, and stays with it",
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
    """Serve several versions side by side, by weight: an A/B test. Users stay in their arm."""
    parts = _weights(weights or [])
    with client_of(cluster) as client:
        service = client.service(name)
        after = service.split(parts)
        if watch:
            with serving.progress(name) as show:
                service.wait_settled(progress=show)
    shares = ", ".join(f"version {n} {part / 100:g} %" for n, part in after.split.items())
    serving.done(
        f"{name}: {shares}" if shares else f"{name} is not split any more",
        f"holdfast services {name}",
    )


def unserve(name: ServiceArgument, cluster: ClusterOption = None) -> None:
    """End a service: its replicas answer what they have begun, and leave. Its model stays.

    With the last service also the gateway and the conductor end that `holdfast serve` had started
    on this machine. The next `holdfast serve` starts them again.
    """
    from holdfast.cli.serve.output import ended_words
    from holdfast.client.serving import end_processes

    with client_of(cluster) as client:
        try:
            service = client.service(name)
        except Missing:
            # One that was interrupted, or was given on another machine, left them.
            with serving.progress(name) as show:
                stopped = end_processes(client.found, show)
            if not stopped.names:
                raise
            serving.done(ended_words(stopped))
            return
        with serving.progress(name) as show:
            stopped = service.stop(progress=show)
    serving.done(f"{name} is not served any more")
    if ended := ended_words(stopped):
        serving.done(ended)


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
    serving.done(made, f"curl -H 'x-api-key: {made[:6]}…' …   holdfast services {name}")


@keys.command("remove", epilog=KEY_EXAMPLES)
def key_remove(
    name: ServiceArgument,
    key: Annotated[str, typer.Argument(help="The key, or the first letters of its SHA-256.")],
    cluster: ClusterOption = None,
) -> None:
    """Forget an API key. Without any, requests need none."""
    with client_of(cluster) as client:
        left = client.service(name).remove_key(key).keys
    serving.done(f"{name} has {texts.many(len(left), 'key')} left")


# --- showing --------------------------------------------------------------------------------------


def document(sight: Sight) -> dict[str, Any]:
    """A service as JSON."""
    service, course = sight.service, sight.course
    return {
        "name": service.name,
        "model": service.model,
        "target": service.target,
        "wanted": sight.wanted,
        "version": course.stable if course else None,
        "previous": course.previous if course else None,
        "next": course.next if course else None,
        "stage": course.stage.value if course else "",
        "since_s": course.since_s if course else None,
        "reason": course.reason if course else "",
        "arms": [plain_of(arm) for arm in course.arms] if course else [],
        "failed": {str(n): why for n, why in course.failed.items()} if course else {},
        "pinned": service.pinned,
        "replicas_min": service.replicas_min,
        "replicas_max": service.replicas_max,
        "replicas_wanted": course.replicas if course else service.replicas_min,
        "ready": sight.ready(course.stable if course else None),
        "replicas": [plain_of(one) for _, one in sorted(sight.replicas.items())],
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
            for name, one in sorted(sight.gateways.items())
        },
        "course": course.number if course else 0,
        "settings": {
            "rollout": plain_of(service.policy),
            "guards": plain_of(service.guards),
            "limits": plain_of(service.limits),
            "breaker": plain_of(service.breaker),
        },
        "keys": [key[:_KEY_LETTERS] for key in service.keys],
        "operator_keys": [key[:_KEY_LETTERS] for key in service.operator_keys],
        "job": sight.doing,
    }


def _row(sight: Sight, *, alone: bool) -> tuple[object, ...]:
    service, course = sight.service, sight.course
    why = listing.one_line(course.reason) if course and sight.replicas else sight.doing
    why = f"{_ALONE}; before: {why}" if alone else why
    wanted = course.replicas if course else service.replicas_min
    version = course.stable if course else None
    return (
        service.name,
        f"{service.model}@{service.target}",
        _stage(sight, alone=alone) if course else "-",
        arms_of(course),
        course.previous if course and course.previous is not None else "-",
        f"{sight.ready(version)}/{wanted}",
        texts.ago(course.since_s) if course else "-",
        why,
    )


def _stage(sight: Sight, *, alone: bool) -> str:
    """Where its rollout is, as far as somebody decides about it."""
    if sight.course is None:
        return "nothing is decided yet"
    stage = sight.course.stage.value
    return f"{stage}?" if alone else stage


def _show_one(sight: Sight, *, alone: bool = False) -> None:
    service, course = sight.service, sight.course
    least, most = service.replicas_min, service.replicas_max
    span = f"{least} to {most} by its load" if least != most else f"always {most}"
    count = "" if service.replicas_wanted is None else f", {service.replicas_wanted} wanted"
    shown_keys = ", ".join(key[:_KEY_LETTERS] for key in service.keys)
    listing.facts(
        [
            ("service", service.name),
            ("model", f"{service.model}@{service.target}"),
            ("pinned", "" if service.pinned is None else f"version {service.pinned}"),
            ("stage", _stage(sight, alone=alone) + (f" ({_ALONE})" if alone else "")),
            ("version", arms_of(course)),
            ("previous", "" if course is None or course.previous is None else course.previous),
            ("why", course.reason if course else sight.doing),
            ("replicas", f"{len(sight.replicas)} ({span}{count})"),
            ("job", f"serve.{service.name} is {sight.doing}"),
            *service_settings.rows(service),
            ("keys", shown_keys),
            ("operators", ", ".join(key[:_KEY_LETTERS] for key in service.operator_keys)),
        ]
    )
    for version, why in sorted(course.failed.items() if course else ()):
        listing.facts([(f"{version} failed", listing.own_paths(why))])
    if sight.replicas:
        output.out().print()
        columns = ["replica", "node", "region", "address", "versions", "breaker", "since"]
        rows = [_replica_row(one, sight) for _, one in sorted(sight.replicas.items())]
        listing.show(columns, rows, right=("replica",), drop=("region", "since"))
    _show_gateways(sight)
    listing.note(
        f"its story: holdfast why {service.name}   its output: holdfast logs serve.{service.name}"
    )


def _replica_row(one: Replica, sight: Sight) -> tuple[object, ...]:
    versions = ", ".join(f"{n} {held.state.value}" for n, held in sorted(one.versions.items()))
    return (
        one.worker,
        one.node or "-",
        one.region or "-",
        f"{one.host}:{one.http_port}",
        f"draining; {versions}" if one.draining else versions or "-",
        service_settings.breaker_of(sight.gateways, sight.name, one.worker),
        texts.ago(one.started_s),
    )


def _show_gateways(sight: Sight) -> None:
    if not sight.gateways:
        listing.note("no gateway is here: holdfast serve starts one")
        return
    said = [
        f"{name} {one.address}" + (f" ({one.region})" if one.region else "")
        for name, one in sorted(sight.gateways.items())
    ]
    listing.note(f"gateways: {', '.join(said)}")
    for name, one in sorted(sight.gateways.items()):
        if one.why:
            listing.note(f"gateway {name} stays as it is: {one.why}")


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
    serving.done(f"{name} is to have {many}", f"holdfast services {name}")
    absence.warn(absence.warnings(client.found, services=True))
