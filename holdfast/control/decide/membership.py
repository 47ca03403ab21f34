"""Who is in a job's view, and who is told of it. Pure.

When the next view is written:

- *A member is gone*: at once, with all others that live and whoever is ready to join. However few
  survive, they go on: lanes give the same bits on any number of workers. (`workers_min` is the
  number to start with.)
- *Somebody is ready to join, or is to leave*: when those who were placed together have had
  `GATHER_S` to come up, and when no checkpoint is under way (at most `VIEW_WAIT_S`): a change of
  the view ends the attempt.
- *Nobody of the last view lives*, or there was none: when `workers_min` are ready, to start from
  the last committed checkpoint.
- *A setting was changed*: with the same members, so that they meet, and take it at one step. It
  waits for a checkpoint under way as a joiner does, unless it names a step to take effect at.
- *A member cannot be reached by others* (`unreachable_members`): at once, without it.
- *A member is slower than the others* (`pace`): with the same members, and fewer lanes for it. It
  waits for a checkpoint under way.

Nobody joins once the job's last step is made: what is left to do is to commit it.

A leaving worker stays in the view until somebody who stays is known to hold the state, and comes
back into it if that one dies. So drains never lose the state. And before anything starts from a
checkpoint, whoever is leaving and not in the view is gone: it might have held the state.

`restore_step` is set when nobody in the new view is known to hold the state. What a report has not
told yet may still be true, so the order is conditional, and people are told so: members meet, and
only if none of them holds a state they start from the checkpoint (`View` says so too). Workers with
the state of an older life of the job cannot be among them: a new life begins only when everyone in
the view is gone, and a worker that is gone never comes back.

Views may overtake each other: each is whole, messages between workers carry its number, and a
worker may skip any number of them. So nobody waits until an older view has been adopted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from holdfast.control.decide import pace
from holdfast.control.decide.commands import Decision, GiveView, StopWorker, WriteView
from holdfast.control.decide.facts import JobRecord, Setting, View, WorkerPhase
from holdfast.control.decide.observed import ObservedJob
from holdfast.control.decide.spans import lasts
from holdfast.control.decide.views import assign
from holdfast.wire.limits import GATHER_S, REPLICA_NOTICE_S, VIEW_WAIT_S

# A worker that is asked to end has so long to reach a step boundary and to put its things away.
NOTICE_S: Final = 30.0

ABLE = (WorkerPhase.READY, WorkerPhase.RUNNING)
# Settings in one sentence; the rest is counted.
SETTINGS_SAID = 3


def wanted_members(seen: ObservedJob) -> frozenset[int]:
    """Who should be in the view now."""
    holders, leaving = seen.holders, seen.leaving
    if seen.job.finished_by is not None:
        # Those who hold the state may reach the end; nobody joins any more.
        return holders - leaving or holders
    out = unreachable_members(seen).keys()
    leaving |= out
    # An agent that has just come back may not have heard its workers yet: a member stays one.
    fit = seen.survivors - leaving
    if seen.last_step is None and len(seen.living) > len(fit) + len(leaving):
        others = (seen.living.keys() & seen.facts.keys()) - fit - leaving
        fit |= {worker for worker in others if seen.facts[worker].phase in ABLE}
    if not seen.all_leave and holders.isdisjoint(fit):
        # Leaving, but perhaps the only ones with the state.
        fit |= (seen.survivors | holders) - out
    return fit


def unreachable_members(seen: ObservedJob) -> dict[int, str]:
    """Members that must go because others cannot reach them, each with the reason.

    Of two that cannot reach each other, the one with more accusers goes; among equals the higher
    number. Who goes does not accuse any more. So somebody always stays; and one who holds the
    state: if nobody else does, its accusers go instead.
    """
    if not seen.accusers:
        return {}
    accusers: dict[int, set[int]] = {}
    for accuser in seen.accusers & seen.survivors:
        for accused in seen.facts[accuser].suspects & seen.survivors - {accuser}:
            accusers.setdefault(accused, set()).add(accuser)
    found: dict[int, str] = {}
    for accused in sorted(accusers, key=lambda worker: (-len(accusers[worker]), -worker)):
        said_by = frozenset(accusers[accused] - found.keys())
        if not said_by or accused in found:
            continue
        others = seen.holders - found.keys() - seen.leaving - {accused}
        if others or accused not in seen.holders:
            found[accused] = f"{_names(said_by)} cannot reach it"
            continue
        for accuser in said_by:
            found[accuser] = f"it cannot reach worker {accused}, which alone holds the state"
    return found


def next_view(seen: ObservedJob, wanted: frozenset[int], now_s: float) -> Decision | None:
    """The next view, if it is time for one."""
    job, members, survivors = seen.job, seen.members, seen.survivors
    if not wanted or seen.all_leave or job.finished_step is not None or job.is_stranded:
        return None
    news = _new_settings(seen)
    deal = None
    if wanted == members and not news and not _start_elsewhere(seen):
        deal = _uneven(seen)
        if deal is None:
            return None
    lost = members - survivors
    if job.finished_by is not None and lasts(job.status.since_s, GATHER_S, now_s):
        return None  # most of them end now: a view for each end would be one for each worker
    if not survivors and not seen.holders:
        if len(wanted) < job.spec.workers_min or _others_come(seen, wanted, now_s):
            return None
    elif not lost and _may_wait(seen, wanted, news, now_s):
        return None
    number = job.view.number + 1 if job.view else 1
    held = {worker: job.view.lanes[worker] for worker in survivors} if job.view else {}
    restore = None if seen.holders else job.committed_step
    if restore is not None and _some_leave(seen, wanted):
        return None
    settle, counts = not lost and not unreachable_members(seen), deal and deal.counts
    lanes = assign(job.spec.lanes, wanted, held, settle=settle, counts=counts)
    manifest = job.checkpoints[-1].manifest if restore else ""
    known = len(settings_of(job))
    view = View(number, lanes, restore, manifest, _addresses(seen, wanted), known)
    return Decision(WriteView(job.name, view), _why(seen, view, lost, news, deal))


def settings_of(job: JobRecord) -> tuple[Setting, ...]:
    """All that a worker is told: the job file's, then those changed at run time, in that order."""
    first = (Setting(name, value, 0) for name, value in sorted(job.spec.settings.items()))
    return (*first, *job.settings)


def _new_settings(seen: ObservedJob) -> tuple[Setting, ...]:
    """Those that the members have not met for. At the job's last step there is no use for them."""
    job = seen.job
    if job.view is None or not job.settings or seen.last_step is not None:
        return ()
    return job.settings[max(job.view.settings - len(job.spec.settings), 0) :]


def _uneven(seen: ObservedJob) -> pace.Deal | None:
    """Another deal of the lanes, if some are slower than others and nothing else is going on."""
    job = seen.job
    if job.view is None or not seen.adopted or seen.leaving or seen.last_step is not None:
        return None
    return pace.deal(job.view.lanes, pace.paces(job.view, seen.facts))


def _addresses(seen: ObservedJob, wanted: frozenset[int]) -> dict[int, str]:
    """Where each is met. A member whose agent is only coming back is where it was."""
    known = dict(seen.job.view.addresses) if seen.job.view else {}
    known.update((worker, facts.address) for worker, facts in seen.facts.items())
    return {worker: known[worker] for worker in sorted(wanted) if known.get(worker)}


def _start_elsewhere(seen: ObservedJob) -> bool:
    """Whether the view starts from a checkpoint that was marked unreadable since."""
    view = seen.job.view
    if view is None or view.restore_step is None or view.restore_step == seen.job.committed_step:
        return False
    return not seen.holders


def _some_leave(seen: ObservedJob, wanted: frozenset[int]) -> bool:
    return not seen.leaving <= wanted


def _others_come(seen: ObservedJob, wanted: frozenset[int], now_s: float) -> bool:
    """Whether somebody who was placed a moment ago is still coming up."""
    return any(
        worker not in wanted
        and not placement.draining
        and lasts(placement.since_s, GATHER_S, now_s)
        for worker, placement in seen.living.items()
    )


def _may_wait(
    seen: ObservedJob, wanted: frozenset[int], news: tuple[Setting, ...], now_s: float
) -> bool:
    attempt = seen.job.attempt
    if _start_elsewhere(seen) or unreachable_members(seen).keys() & seen.members:
        return False
    if any(setting.at_step for setting in news):
        return False  # a checkpoint can be tried again, a step that is over cannot
    if attempt is not None and lasts(attempt.since_s, VIEW_WAIT_S, now_s):
        return True
    return bool(wanted - seen.members) and _others_come(seen, wanted, now_s)


def _why(
    seen: ObservedJob,
    view: View,
    lost: frozenset[int],
    news: tuple[Setting, ...],
    deal: pace.Deal | None,
) -> str:
    members, wanted = seen.members, frozenset(view.lanes)
    said = []
    if lost:
        said.append(f"{_names(lost)} gone")
    out = members & unreachable_members(seen).keys() - wanted
    if out:
        said.append(f"{_names(out)} out of reach")
    if left := members - lost - wanted - out:
        said.append(f"{_names(left)} leaving")
    if joined := wanted - members:
        said.append(f"{_names(joined)} ready")
    said += [setting_text(setting) for setting in news[:SETTINGS_SAID]]
    if len(news) > SETTINGS_SAID:
        said.append(f"{len(news) - SETTINGS_SAID} more settings")
    if deal is not None:
        return f"view {view.number}: {deal.why}"
    text = f"view {view.number}: " + (", ".join(said) or "another start")
    if view.restore_step is None:
        return f"{text}; {_names(seen.holders & wanted)} holding the state"
    start = f"step {view.restore_step}" if view.restore_step else "the beginning"
    # A state is got in a view, so one that was in none holds none. Of a member nothing is known
    # as long as its agent has not told this leader what it holds by now.
    perhaps = seen.survivors & wanted
    if perhaps:
        if_not = "if not" if len(perhaps) == 1 else "if none does"
        hold = "holds" if len(perhaps) == 1 else "hold"
        return (
            f"{text}; whether {_names(perhaps)} {hold} the state is not known yet: {if_not}, from"
            f" {start}"
        )
    return f"{text}; nobody holds the state, so from {start}"


def setting_text(setting: Setting) -> str:
    """`lr=0.01 for step 120`: given, not taken. Whether anything takes it, workers say."""
    when = f"for step {setting.at_step}" if setting.at_step else "for the next step"
    return f"{setting.name}={setting.value} {when}"


def _names(workers: frozenset[int]) -> str:
    """`worker 3`, `workers 3, 4, 7`; a long list is cut."""
    some = [str(worker) for worker in sorted(workers)[:8]]
    more = f" and {len(workers) - 8} more" if len(workers) > 8 else ""
    return f"worker{'s' if len(workers) > 1 else ''} {', '.join(some)}{more}"


def send_view(seen: ObservedJob) -> Iterator[Decision]:
    """Orders that bring the written view to the workers, and let those go who are not in it."""
    job, view = seen.job, seen.job.view
    adopted = seen.adopted
    everyone = seen.all_leave
    if adopted and not seen.leaving:
        return  # the others wait for their first view
    for worker, placement in seen.living.items():
        facts = seen.facts.get(worker)
        if worker in seen.unreported:
            continue
        if everyone:
            yield _stop(seen, worker, "all workers of the job leave")
        elif view is not None and worker in view.lanes:
            if facts is not None and facts.view < view.number:
                yield Decision(
                    GiveView(placement.node, job.name, worker, view),
                    f"worker {worker} is in view {view.number} and has adopted {facts.view}",
                )
        elif placement.draining:
            if job.spec.serves:
                yield _stop(seen, worker, f"worker {worker} leaves; it answers what it has begun")
            elif view is None or facts is None or facts.view == 0:
                yield _stop(seen, worker, f"worker {worker} leaves and was never in a view")
            elif adopted:
                yield _stop(seen, worker, f"worker {worker} is in view {view.number} no more")
            else:
                yield Decision(
                    GiveView(placement.node, job.name, worker, view),
                    f"worker {worker} is not in view {view.number}: it leaves at a step boundary",
                )


def _stop(seen: ObservedJob, worker: int, reason: str) -> Decision:
    node = seen.living[worker].node
    notice_s = REPLICA_NOTICE_S if seen.job.spec.serves else NOTICE_S
    return Decision(StopWorker(node, seen.job.name, worker, notice_s), reason)
