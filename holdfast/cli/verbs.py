"""Which commands about jobs, machines and queues there are, in the order of `holdfast --help`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import typer

from holdfast.cli import (
    acts,
    bundle,
    checkpoints,
    joblogs,
    jobs,
    nodes,
    queues,
    secrets,
    sharing,
    submit,
    why,
)
from holdfast.cli.serve import command as serve
from holdfast.cli.serve import predict, services

_Command = tuple[Callable[..., None], str, str]  # the function, its name, its examples

_JOBS: Final[Sequence[_Command]] = (
    (submit.submit, "submit", submit.EXAMPLES),
    (submit.update, "update", submit.UPDATE_EXAMPLES),
    (jobs.jobs, "jobs", jobs.JOBS_EXAMPLES),
    (why.why, "why", why.EXAMPLES),
    (joblogs.logs, "logs", joblogs.EXAMPLES),
    (acts.scale, "scale", acts.SCALE_EXAMPLES),
    (acts.set_, "set", acts.SET_EXAMPLES),
    (acts.checkpoint, "checkpoint", acts.CHECKPOINT_EXAMPLES),
    (checkpoints.checkpoints, "checkpoints", checkpoints.EXAMPLES),
    (acts.pause, "pause", acts.PAUSE_EXAMPLES),
    (acts.resume, "resume", acts.RESUME_EXAMPLES),
    (acts.stop, "stop", acts.STOP_EXAMPLES),
    (acts.remove, "remove", acts.STOP_EXAMPLES),
)
_SERVING: Final[Sequence[_Command]] = (
    (serve.serve, "serve", serve.EXAMPLES),
    (services.services, "services", services.SERVICES_EXAMPLES),
    (services.rollout, "rollout", services.ROLLOUT_EXAMPLES),
    (services.rollback, "rollback", services.ROLLBACK_EXAMPLES),
    (services.split, "split", services.SPLIT_EXAMPLES),
    (predict.predict, "predict", predict.EXAMPLES),
    (services.unserve, "unserve", services.UNSERVE_EXAMPLES),
)
_MACHINES: Final[Sequence[_Command]] = (
    (nodes.nodes, "nodes", nodes.NODES_EXAMPLES),
    (nodes.drain, "drain", nodes.DRAIN_EXAMPLES),
    (nodes.undrain, "undrain", nodes.DRAIN_EXAMPLES),
    (queues.queues, "queues", queues.QUEUES_EXAMPLES),
    (secrets.secrets, "secrets", secrets.EXAMPLES),
    (sharing.locks, "locks", sharing.LOCKS_EXAMPLES),
)


_GROUPS: Final = ((queues.app, "queue"), (secrets.app, "secret"), (sharing.app, "config"))


def register(app: typer.Typer) -> None:
    """Add them to the root."""
    for panel, commands, groups in (
        ("Jobs", _JOBS, ((bundle.app, "bundle"),)),
        ("Serving", _SERVING, ((services.keys, "key"),)),
        ("Machines and queues", _MACHINES, _GROUPS),
    ):
        for command, name, examples in commands:
            app.command(name, epilog=examples, rich_help_panel=panel)(command)
        for group, name in groups:
            app.add_typer(group, name=name, rich_help_panel=panel)
    # Another way to say `jobs JOB`.
    app.command("job", epilog=jobs.JOBS_EXAMPLES, hidden=True)(jobs.job)
