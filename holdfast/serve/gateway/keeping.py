"""What stays known when facts vanish. Pure.

A registration vanishes when its process ends, and also when a session is lost, or the plane comes
back empty. A gateway that believed it at once would turn healthy replicas away. So what vanished
stays while it is healthy, for a bounded time; and the last replicas of a service stay much longer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from holdfast.serve.gateway.sane import sane
from holdfast.serve.gateway.state import Known, Seen, by_name
from holdfast.serve.records import Course, Replica, Service
from holdfast.wire.limits import LOST_REPLICA_S

# A replica whose registration is gone, and that is healthy, stays this long: time enough for its
# session to come back. The last ones of a service stay for the second.
LOST_LAST_S: Final = 3_600.0

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Found:
    """What the plane holds of a service."""

    service: Service
    course: Course | None = None
    replicas: Mapping[str, Replica] = field(default_factory=dict)


def kept(
    before: Sequence[Known],
    found: Mapping[str, Found],
    now_s: float,
    healthy: Collection[Address] | None,
) -> tuple[Known, ...]:
    """What is known now. `healthy`: the addresses whose checks pass; None: nobody could say."""
    known = by_name(before)
    services = []
    for name in sorted({*known, *found}):
        one = _service(known.get(name), found.get(name), now_s, healthy)
        if one is not None:
            services.append(one)
    return tuple(services)


def anything_lost(services: Sequence[Known]) -> bool:
    """Whether somebody's health must be asked for."""
    return any(
        known.lost_s is not None or any(one.lost_s is not None for one in known.replicas)
        for known in services
    )


def _service(
    before: Known | None, found: Found | None, now_s: float, healthy: Collection[Address] | None
) -> Known | None:
    if found is None:
        assert before is not None
        replicas = _replicas(before, {}, now_s, healthy)
        if not replicas:
            return None
        return replace(before, replicas=replicas, lost_s=_since(before.lost_s, now_s))
    service: Service | None = found.service
    if before is None or before.service != found.service:  # else it was looked at before
        service = sane(found.service)
    if service is None:
        return None
    course = found.course
    if course is None and before is not None:
        course = before.course  # nobody takes a course away; it is on its way back
    replicas = _replicas(before, found.replicas, now_s, healthy)
    return Known(service, course, replicas)


def _replicas(
    before: Known | None,
    found: Mapping[str, Replica],
    now_s: float,
    healthy: Collection[Address] | None,
) -> tuple[Seen, ...]:
    there = [Seen(replica) for replica in found.values()]
    addresses = {one.address for one in there}
    workers = {one.replica.worker for one in there}
    lost = [
        replace(one, lost_s=_since(one.lost_s, now_s))
        for one in (before.replicas if before is not None else ())
        # Another process under the same number has taken its place; one that was draining is done.
        if one.address not in addresses and one.replica.worker not in workers and not one.draining
    ]
    able = any(not one.draining for one in there)
    well = [one for one in lost if healthy is None or one.address in healthy]
    stay = [one for one in lost if _stays(one, now_s, one in well, able or bool(well), able)]
    return tuple(sorted((*there, *stay), key=lambda one: (one.replica.worker, one.address)))


def _stays(one: Seen, now_s: float, well: bool, others_well: bool, others_there: bool) -> bool:
    assert one.lost_s is not None
    lost_for_s = now_s - one.lost_s
    if not well:
        return not others_well and lost_for_s < LOST_REPLICA_S
    return lost_for_s < (LOST_REPLICA_S if others_there else LOST_LAST_S)


def _since(lost_s: float | None, now_s: float) -> float:
    return now_s if lost_s is None else lost_s
