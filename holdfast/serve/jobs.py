"""The job whose workers are a service's replicas."""

from __future__ import annotations

from typing import Final

from holdfast.control.decide.facts import Intent
from holdfast.control.decide.spec import CheckpointPolicy, JobSpec, Mode, RestartPolicy
from holdfast.control.store.plane import ControlPlane
from holdfast.serve.records import Service, job_name
from holdfast.wire.errors import Conflict, Missing
from holdfast.wire.limits import REPLICA_AWAY_S, SERVICE_REPLICAS_MAX, UPDATE_TRIES_MAX
from holdfast.wire.talk import REPLICA_MODULE

# A replica that fails is started again after the first, then ever later up to the second. A service
# that is down for want of a store or a model should be back soon after they are.
REPLICA_BACKOFF_S: Final = 0.5
REPLICA_BACKOFF_S_MAX: Final = 30.0
# A replica that ran so long has earned a fresh start.
REPLICA_FORGIVEN_S: Final = 300.0


def spec_of(service: Service) -> JobSpec:
    """One replica is what the job cannot do without: it goes before all of lower priority, also
    before whole jobs. Those above it take from what other jobs have above their own minimum."""
    return JobSpec(
        name=job_name(service.name),
        command=("python", "-m", REPLICA_MODULE, service.name),
        queue=service.queue,
        priority=service.priority,
        workers_min=1,
        # How many it has is told apart (`workers_wanted`), and changes; a spec never does.
        workers_max=SERVICE_REPLICAS_MAX,
        resources=service.resources,
        mode=Mode.SERVE,
        checkpoint=CheckpointPolicy(every_s=None),
        restart=RestartPolicy(
            backoff_s=REPLICA_BACKOFF_S,
            backoff_s_max=REPLICA_BACKOFF_S_MAX,
            forgiven_after_s=REPLICA_FORGIVEN_S,
        ),
        # It waits as long as there is no version that it could serve; that is not hanging.
        silence_s=REPLICA_AWAY_S,
    )


def ensure(plane: ControlPlane, service: Service) -> None:
    """Submit it, unless it is there. One that has ended is removed first."""
    name, spec = job_name(service.name), spec_of(service)
    replicas = service.replicas_wanted or service.replicas_min
    for _ in range(UPDATE_TRIES_MAX):
        try:
            job = plane.job(name)
        except Missing:
            try:
                plane.submit(spec, replicas)
            except Conflict:
                continue  # somebody was first: see whether it is ours
            return
        if not job.status.phase.final and not job.intent.stops:
            if job.spec != spec:
                raise Conflict(
                    f"there is a job {name} already, and it is not the one of this service",
                    fix=f"holdfast stop {name}, then holdfast serve again",
                )
            return
        if not job.status.phase.final:
            raise Conflict(
                f"the replicas of {service.name} are being stopped",
                fix="try again in a moment",
            )
        forget(plane, name)


def stop(plane: ControlPlane, job: str) -> bool:
    """Ask its replicas to leave; whether all have."""
    try:
        found = plane.job(job)
    except Missing:
        return True
    if found.status.phase.final:
        return True
    if not found.intent.stops:
        plane.set_intent(job, Intent.STOP)
    return False


def forget(plane: ControlPlane, job: str) -> None:
    """Remove it if it has ended; twice is once."""
    try:
        plane.remove(job)
    except Missing:
        return
