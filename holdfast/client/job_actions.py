"""What people do with a job: scale, set, checkpoint, pause, resume, stop, remove. Each is one write
to the coordination plane; what comes of it is waited for by `job_waits`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.client import texts
from holdfast.wire.errors import Missing, Refused, Usage

if TYPE_CHECKING:
    from holdfast.client.opening import Opened
    from holdfast.control.decide.facts import Intent, JobRecord


def scale(found: Opened, name: str, workers: int | None) -> None:
    """Have so many workers; None: as many as its file allows."""
    check_no_service(found, name)
    found.job(name)
    found.plane.scale(name, workers)


def change_settings(found: Opened, name: str, settings: Mapping[str, Any], at_step: int) -> None:
    """Every worker takes them at that step; 0: as soon as every worker knows them."""
    if not settings:
        raise Usage("no setting is given", fix=f"holdfast set {name} lr=0.01")
    found.job(name)
    for key, value in settings.items():
        found.plane.change_setting(name, key, str(value), at_step)


def ask_checkpoint(found: Opened, name: str) -> JobRecord:
    """Ask for one; the job before it."""
    before = found.job(name)
    if not before.placements and not before.status.phase.final:
        raise Refused(
            f"{name} has no workers now, so there is nothing to save",
            why=f"it is {before.status.phase.value}: {texts.one_line(before.status.reason)}",
            fix=f"holdfast why {name}",
        )
    found.plane.ask_checkpoint(name)
    return before


def intend(found: Opened, name: str, intent: Intent) -> None:
    """Run, pause or stop it."""
    check_no_service(found, name)
    found.job(name)
    found.plane.set_intent(name, intent)


def begin_from_scratch(found: Opened, name: str) -> None:
    """Begin at step 0, where none of its checkpoints can be read."""
    check_no_service(found, name)
    found.job(name)
    found.plane.begin_from_scratch(name)


def remove(found: Opened, name: str) -> None:
    """Forget a job that has ended."""
    check_no_service(found, name)
    found.job(name)
    found.plane.remove(name)


def service_of(found: Opened, name: str) -> str:
    """The service that `SERVICE` or its job's name names; empty: it is a job like any other."""
    from holdfast.serve.records import job_name

    known = found.services().services()
    if name in known and name not in found.plane.jobs():
        return name
    return next((each for each in known if job_name(each) == name), "")


def is_service(found: Opened, name: str) -> bool:
    """Whether a service has this name, and no job has."""
    try:
        found.plane.job(name)
    except Missing:
        return name in found.services().services()
    return False


def check_no_service(found: Opened, name: str) -> None:
    """A service's job is its controller's: people change the service."""
    service = service_of(found, name)
    if service:
        raise Refused(
            f"{name} is what serves {service}",
            why="its replicas are started and ended with the service",
            fix=f"holdfast unserve {service}   or fewer replicas: holdfast scale {service} 1",
        )
