"""What people do with a job: scale, set, checkpoint, pause, resume, stop, remove."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import absence, completion, output
from holdfast.cli.options import ClusterOption, JobArgument, client_of
from holdfast.client import texts
from holdfast.wire.errors import Usage

if TYPE_CHECKING:
    from holdfast.control.decide import facts

WaitOption = Annotated[bool, typer.Option("--wait", help="Return when it is so.")]

SCALE_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast scale counter 2[/]      no more than 2 workers; the others leave at a step boundary

  [cyan]holdfast scale counter max[/]    as many as its file allows, as room is free

  [cyan]holdfast scale digits 3[/]       so many replicas of a service

  [cyan]holdfast scale digits auto[/]    as many as its load asks for, from --min to --max
"""
SET_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast set counter lr=0.01[/]                  as soon as every worker knows it

  [cyan]holdfast set counter lr=0.01 --at-step 5000[/]   every worker takes it at step 5000
"""
CHECKPOINT_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast checkpoint counter --wait && holdfast stop counter --now[/]
"""
PAUSE_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast pause counter --wait[/]    its room is free for others

  [cyan]holdfast resume counter[/]          it goes on where it was
"""
RESUME_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast resume counter[/]                  it goes on where it was

  [cyan]holdfast resume counter --from-scratch[/]   its checkpoints are lost: begin at step 0
"""
STOP_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast stop counter[/]         after a last checkpoint

  [cyan]holdfast stop counter --now[/]   without one

  [cyan]holdfast stop counter --wait && holdfast remove counter[/]
"""


def scale(
    name: JobArgument,
    workers: Annotated[str, typer.Argument(metavar="N", help="A number, or `max`.")],
    cluster: ClusterOption = None,
) -> None:
    """Have so many workers at most, or of a service so many replicas. Those above it leave at a
    step boundary, or when they have answered; none restarts."""
    from holdfast.client import job_actions

    if workers not in ("max", "auto") and not (workers.isascii() and workers.isdecimal()):
        raise Usage(f"{workers!r} is not a number of workers", fix=f"holdfast scale {name} 2")
    count = None if workers in ("max", "auto") else int(workers)
    with client_of(cluster) as client:
        service = job_actions.service_of(client.found, name)
        if service:
            from holdfast.cli.serve import services

            services.scaled(client, service, count)
            return
        client.job(name).scale(count)
        absence.warn(absence.warnings(client.found, services=False))
    many = "as many workers as its file allows" if count is None else texts.many(count, "worker")
    output.done(f"{name} is to have {many}", f"holdfast jobs {name}")


def set_(
    name: JobArgument,
    settings: Annotated[list[str], typer.Argument(metavar="NAME=VALUE…", help="Settings.")],
    at_step: Annotated[
        int, typer.Option(min=0, help="The step that they take effect at; 0: the next possible.")
    ] = 0,
    cluster: ClusterOption = None,
) -> None:
    """Change settings of a running job: every worker knows them from the same step on. They count
    where an optimizer keeps something of that name, where the script reads them in its loop, and
    for `lane_batch` and `accumulate`."""
    from holdfast.cli.jobs.submit import pairs

    changed = pairs(settings, f"holdfast set {name} lr=0.01")
    with client_of(cluster) as client:
        client.job(name).set(changed, at_step=at_step)
    shown = ", ".join(f"{key}={value}" for key, value in changed.items())
    when = f"for step {at_step:,}" if at_step else "for the next step"
    check = f"`holdfast jobs {name}` says whether anything takes it"
    output.done(f"{name}: {shown} is given {when}; {check}", f"holdfast why {name}")


def checkpoint(name: JobArgument, wait: WaitOption = False, cluster: ClusterOption = None) -> None:
    """Ask for a checkpoint as soon as can be."""
    with client_of(cluster) as client:
        after = client.job(name).checkpoint(wait=wait, progress=absence.ProgressLines())
    if not wait:
        output.done(f"{name} makes a checkpoint", f"holdfast checkpoints {name}")
        return
    output.done(
        f"step {after.committed_step:,} of {name} is committed", f"holdfast checkpoints {name}"
    )


def pause(name: JobArgument, wait: WaitOption = False, cluster: ClusterOption = None) -> None:
    """Save a checkpoint and end its workers; its room is free until `holdfast resume`."""
    with client_of(cluster) as client:
        done = client.job(name).pause(wait=wait, progress=absence.ProgressLines())
    if done is None:
        output.done(f"{name} pauses after a checkpoint", f"holdfast resume {name}")
    else:
        output.done(f"{name} is paused{_at(done)}", f"holdfast resume {name}")


def resume(
    name: JobArgument,
    from_scratch: Annotated[
        bool,
        typer.Option(
            "--from-scratch", help="Begin at step 0: none of its checkpoints can be read."
        ),
    ] = False,
    cluster: ClusterOption = None,
) -> None:
    """Let a paused job go on from its last checkpoint."""
    with client_of(cluster) as client:
        client.job(name).resume(from_scratch=from_scratch)
    output.done(f"{name} goes on as soon as there is room", f"holdfast why {name}")


def stop(
    name: JobArgument,
    now: Annotated[bool, typer.Option("--now", help="Without a last checkpoint.")] = False,
    wait: WaitOption = False,
    cluster: ClusterOption = None,
) -> None:
    """End a job for good, after a last checkpoint."""
    with client_of(cluster) as client:
        done = client.job(name).cancel(now=now, wait=wait, progress=absence.ProgressLines())
    if done is None:
        how = "stops now" if now else "stops after a last checkpoint"
        output.done(f"{name} {how}", f"holdfast jobs {name}")
    else:
        output.done(f"{name} is stopped{_at(done)}", f"holdfast remove {name}")


def remove(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB…", help="Jobs that have ended.", autocompletion=completion.jobs
        ),
    ],
    cluster: ClusterOption = None,
) -> None:
    """Forget jobs that have ended: their history, their checkpoints. Their names are free again."""
    with client_of(cluster) as client:
        for name in names:
            client.job(name).remove()
            output.done(f"{name} is removed")


def _at(job: facts.JobRecord) -> str:
    return f"; step {job.committed_step:,} is committed" if job.checkpoints else ""
