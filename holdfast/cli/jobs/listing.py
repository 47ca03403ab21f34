"""`holdfast jobs`: what there is, how far it is, and what it waits for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import completion, output
from holdfast.cli.jobs import phrases
from holdfast.cli.jobs.phrases import given_settings
from holdfast.cli.options import ClusterOption, JobArgument, JsonOption, client_of
from holdfast.client import texts
from holdfast.client.job_status import Working, step_of, wants, workers_in
from holdfast.wire.reports import SETTING_METRIC

if TYPE_CHECKING:
    from holdfast.control.decide.facts import JobRecord
    from holdfast.control.decide.spec import JobSpec

# A job that ended is shown for so long without being asked for.
RECENT_S = 24 * 3_600.0

JOBS_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast jobs[/]              those that live, and those that ended within a day

  [cyan]holdfast jobs --all[/]        all of them

  [cyan]holdfast jobs counter[/]      everything about one

  [cyan]holdfast jobs --json | jq '.jobs[] | select(.phase=="failed") | .name'[/]
"""


def jobs(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[JOB]", help="One job in full.", autocompletion=completion.jobs),
    ] = None,
    every: Annotated[bool, typer.Option("--all", "-a", help="Also those long ended.")] = False,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs: phase, workers, step, last committed step, and why."""
    if name is not None:
        job(name, cluster, as_json)
        return
    with client_of(cluster, reads=True) as client:
        found = client.found
        known = found.plane.jobs()
        living = any(not each.status.phase.final for each in known.values())
        seen, trouble = found.seen() if living else ([], "")
    now_s = time.time()
    shown = [
        each
        for each in sorted(known.values(), key=_order)
        if every or not each.status.phase.final or now_s - each.status.since_s < RECENT_S
    ]
    if as_json:
        output.show_json({"jobs": [document(each, workers_in(seen, each.name)) for each in shown]})
        return
    if not shown:
        hidden = f" ({len(known)} ended long ago: holdfast jobs --all)" if known else ""
        output.note(f"no jobs{hidden}. Submit one: holdfast submit job.yaml")
        return
    columns = ["job", "phase", "queue", "priority", "workers", "step", "saved", "since", "why"]
    rows = [_row(each, workers_in(seen, each.name), now_s) for each in shown]
    right = ("priority", "workers", "step", "saved", "since")
    output.show_table(
        columns, rows, right=right, drop=("queue", "priority", "since", "saved", "step")
    )
    if len(shown) < len(known):
        output.note(f"{len(known) - len(shown)} more ended long ago: holdfast jobs --all")
    if trouble:
        output.note(f"steps are not known now: {trouble}")


def job(name: JobArgument, cluster: ClusterOption = None, as_json: JsonOption = False) -> None:
    """Everything about one job."""
    with client_of(cluster, reads=True) as client:
        wanted = client.job(name).facts()
        seen, trouble = ([], "") if wanted.status.phase.final else client.found.seen()
    working = workers_in(seen, name)
    if as_json:
        output.show_json(document(wanted, working) | {"workers": _worker_rows(wanted, working)})
        return
    output.show_facts(_facts(wanted, working))
    rows = _worker_rows(wanted, working)
    if rows:
        output.out().print()
        _show_workers(wanted, rows)
    if trouble:
        output.note(f"what its workers do is not known now: {trouble}")
    if not wanted.status.phase.final:
        output.note(f"its story: holdfast why {name}   its output: holdfast logs {name} -f")


def _show_workers(wanted: JobRecord, rows: list[dict[str, Any]]) -> None:
    if wanted.spec.serves:
        output.show_table(
            ["worker", "node", "phase", "address", "probe"],
            [
                (r["worker"], r["node"], r["phase"], _addresses(r["addresses"]), r["trouble"])
                for r in rows
            ],
            right=("worker",),
            drop=("node",),
        )
        return
    output.show_table(
        ["worker", "node", "phase", "lanes", "step", "metrics"],
        [
            (
                *(r["worker"], r["node"], r["phase"], r["lanes"], _number(r["step"])),
                r["metrics"] or r["trouble"],
            )
            for r in rows
        ],
        right=("worker", "step"),
    )


def _addresses(found: dict[str, str]) -> str:
    """`http 127.0.0.1:20002`."""
    return ", ".join(f"{name} {address}" for name, address in sorted(found.items())) or "-"


def document(wanted: JobRecord, working: Working) -> dict[str, Any]:
    """A job as JSON."""
    spec = wanted.spec
    return {
        "name": wanted.name,
        "phase": wanted.status.phase.value,
        "reason": wanted.status.reason,
        "since_s": wanted.status.since_s,
        "submitted_s": wanted.submitted_s,
        "intent": wanted.intent.value,
        "queue": spec.queue,
        "priority": spec.priority,
        "mode": spec.mode.value,
        "workers_have": len(wanted.placements),
        "workers_want": wants(wanted),
        "workers_min": spec.workers_min,
        "workers_max": spec.workers_max,
        "lanes": spec.lanes,
        "step": step_of(wanted, working),
        "committed_step": wanted.committed_step if wanted.checkpoints else None,
        "committed_s": wanted.checkpoints[-1].committed_s if wanted.checkpoints else None,
        "bundle": spec.bundle,
        "command": list(spec.command),
        "revision": wanted.revision,
        "settings": dict(spec.settings),
        "env": dict(spec.env),
        "secrets": dict(spec.secrets),
        "requirements": list(spec.requirements),
        **_trigger(wanted),
        "changed_settings": [
            {"name": each.name, "value": each.value, "at_step": each.at_step, "taken": each.taken}
            for each in given_settings(wanted, working)
        ],
        "failures": [
            {"worker": each.worker, "at_s": each.at_s, "step": each.step, "reason": each.reason}
            for each in wanted.failures
        ],
    }


def _trigger(wanted: JobRecord) -> dict[str, Any]:
    """Of one that starts others, what for and how far it is; of a started one, its records."""
    on, state, given = wanted.spec.on, wanted.trigger, wanted.spec.triggered
    found: dict[str, Any] = {}
    if on is not None:
        found["on"] = {
            "topic": on.topic,
            "every_records": on.every_records,
            "every_s": on.every_s,
            "filter": on.filter,
            "start": on.start.value,
            "at_once": on.at_once,
            "started": state.started if state else 0,
            "removed_before_a_job": state.trimmed if state else 0,
            "positions": list(state.positions) if state else [],
        }
    if given is not None:
        ranges = [{"partition": r.partition, "first": r.first, "end": r.end} for r in given.ranges]
        found["triggered"] = {
            "trigger": given.trigger,
            "number": given.number,
            "topic": given.topic,
            "filter": given.filter,
            "ranges": ranges,
        }
    return found


def _trigger_rows(wanted: JobRecord) -> list[tuple[str, object]]:
    from holdfast.control.decide.triggers import every_text
    from holdfast.wire.triggers import OffsetRange, ranges_text

    on, state, given = wanted.spec.on, wanted.trigger, wanted.spec.triggered
    rows: list[tuple[str, object]] = []
    if on is not None:
        only = f", of which it reads those with {on.filter}" if on.filter else ""
        rows.append(("on", f"{every_text(on)} of topic {on.topic}{only}"))
    if on is not None and state is not None:
        places = ", ".join(f"{part}: {at:,}" for part, at in enumerate(state.positions[:8]))
        more = f", and {len(state.positions) - 8} more" if len(state.positions) > 8 else ""
        rows.append(("next", f"partition {places}{more}" if places else "the beginning"))
        rows.append(("started", f"{state.started:,}"))
    if given is not None:
        ranges: tuple[OffsetRange, ...] = given.ranges
        text = f"{given.count:,} records of topic {given.topic} ({ranges_text(ranges)})"
        rows.append(("started by", f"{given.trigger}, for {text}"))
    return rows


def _order(wanted: JobRecord) -> tuple[bool, float]:
    """The living first, then the newest."""
    return wanted.status.phase.final, -wanted.submitted_s


def _row(wanted: JobRecord, working: Working, now_s: float) -> tuple[object, ...]:
    from holdfast.wire.causes import cause_of

    status = wanted.status
    why = cause_of(status.reason).line if status.phase.value == "failed" else status.reason
    have, want = len(wanted.placements), wants(wanted)
    return (
        wanted.name,
        output.phase_text(status.phase.value),
        wanted.spec.queue,
        wanted.spec.priority,
        f"{have}/{want}" if have or want else "-",
        _kind(wanted.spec) or _number(step_of(wanted, working)),
        _number(wanted.committed_step if wanted.checkpoints else None),
        texts.ago(status.since_s, now_s),
        texts.one_line(why),
    )


def _kind(spec: JobSpec) -> str:
    """What it is, if it is no training with steps."""
    return "serves" if spec.serves else "trigger" if spec.on is not None else ""


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "-"


def _facts(wanted: JobRecord, working: Working) -> list[tuple[str, object]]:
    from holdfast.control.decide import units
    from holdfast.control.decide.capacity import amounts_of
    from holdfast.control.decide.sentences import amount

    spec, status = wanted.spec, wanted.status
    policy = spec.checkpoint
    every = [f"every {policy.every_steps:,} steps"] if policy.every_steps else []
    every += [f"every {units.duration_of(policy.every_s)}"] if policy.every_s is not None else []
    saved = "none committed yet"
    if wanted.checkpoints:
        steps = ", ".join(f"{each.step:,}" for each in wanted.checkpoints)
        saved = f"steps {steps}; the last {texts.ago(wanted.checkpoints[-1].committed_s)} ago"
    settings = [f"{name}={value}" for name, value in sorted(spec.settings.items())]
    settings += [given.text for given in given_settings(wanted, working)]
    needs = amount(amounts_of(spec.resources))
    span = f"{spec.workers_min} to {spec.workers_max}"
    wanted_now = f", {wants(wanted)} wanted" if wanted.workers_wanted else ""
    return [
        ("job", wanted.name),
        ("phase", output.phase_text(status.phase.value)),
        ("since", f"{texts.clock(status.since_s)}, {texts.ago(status.since_s)} ago"),
        ("why", output.with_own_paths(status.reason)),
        ("submitted", f"{texts.day(wanted.submitted_s)} {texts.clock(wanted.submitted_s)}"),
        ("queue", f"{spec.queue}, priority {spec.priority}"),
        ("workers", f"{len(wanted.placements)} ({span} allowed{wanted_now}), each with {needs}"),
        *(
            [("mode", "serve: each worker is a replica"), ("asked", _probes(spec))]
            if spec.serves
            else [
                ("lanes", f"{spec.lanes:,}, mode {spec.mode.value}"),
                (
                    "step",
                    phrases.step_text(
                        phrases.step_reached(wanted, step_of(wanted, working)),
                        phrases.committed_of(wanted),
                    ).removeprefix("step ")
                    or "-",
                ),
                (
                    "checkpoints",
                    f"{saved} ({' or '.join(every) or 'only when asked'}, keeps {policy.keep})",
                ),
            ]
        ),
        ("settings", ", ".join(settings)),
        *_environment(spec),
        *_trigger_rows(wanted),
        ("command", _shown(spec.command)),
        ("bundle", spec.bundle),
        ("failures", len(wanted.failures) or ""),
        ("view", _view(wanted)),
        ("slowest", _slowest(wanted, working)),
        *(phrases.cause_rows(status.reason) if status.phase.value == "failed" else []),
    ]


def _environment(spec: JobSpec) -> list[tuple[str, object]]:
    """What its workers are told, and which secrets they get: never a secret's value."""
    shown = [f"{name}={value}" for name, value in sorted(spec.env.items())]
    kept = [f"{name} is {secret}" for name, secret in sorted(spec.secrets.items())]
    needed = ", ".join(spec.requirements)
    rows = (("env", ", ".join(shown)), ("secrets", ", ".join(kept)), ("requires", needed))
    return [row for row in rows if row[1]]


def _probes(spec: JobSpec) -> str:
    """How its replicas are asked."""
    from holdfast.control.decide import units

    parts = []
    for key, probe in (("ready", spec.ready), ("live", spec.live)):
        if probe is not None:
            at = f" at port {probe.port}" if probe.port else ""
            what = probe.path or _shown(probe.command)
            words = f"{key}: {probe.kind.value} {what}".rstrip() + at
            parts.append(f"{words} every {units.duration_of(probe.every_s)}")
    return ", ".join(parts)


def _shown(command: tuple[str, ...]) -> str:
    import shlex

    return shlex.join(command)


def _view(wanted: JobRecord) -> str:
    view = wanted.view
    if view is None:
        return ""
    return f"{view.number}, of {texts.many(len(view.lanes), 'worker')}"


def _slowest(wanted: JobRecord, working: Working) -> str:
    from holdfast.control.decide import pace

    reported = {worker: facts for worker, (_, facts) in working.items()}
    slow = pace.slowest(pace.paces(wanted.view, reported))
    return "" if slow is None else f"worker {slow.worker}, {slow.text}"


def _worker_rows(wanted: JobRecord, working: Working) -> list[dict[str, Any]]:
    lanes = wanted.view.lanes if wanted.view else {}
    rows = []
    for placement in wanted.placements:
        _, facts = working.get(placement.worker, (placement.node, None))
        phase = "not heard of" if facts is None else facts.phase.value
        metrics = {} if facts is None else facts.metrics
        rows.append(
            {
                "worker": placement.worker,
                "node": placement.node,
                "phase": f"{phase}, leaving" if placement.draining else phase,
                "lanes": _runs(lanes.get(placement.worker, ())),
                "step": None if facts is None else facts.step,
                "ready": facts is not None and facts.phase.value in ("ready", "running"),
                "leaving": placement.draining,
                "revision": placement.revision,
                "addresses": {} if facts is None else dict(facts.endpoints),
                "trouble": "" if facts is None else facts.trouble or phrases.preparing(facts),
                "preparing": "" if facts is None else facts.preparing,
                "metrics": " ".join(
                    f"{name}={value:.4g}"
                    for name, value in metrics.items()
                    if not name.startswith(SETTING_METRIC)
                ),
            }
        )
    return rows


def _runs(lanes: tuple[int, ...]) -> str:
    """`0-3,6`."""
    runs: list[list[int]] = []
    for lane in lanes:
        if runs and lane == runs[-1][1] + 1:
            runs[-1][1] = lane
        else:
            runs.append([lane, lane])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)
