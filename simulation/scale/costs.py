"""Every figure that the model stands on: its value, its unit, and where it comes from.

Measured on one machine: 2 cores (Intel Xeon, virtual), Linux 6.18, Python 3.11.7, 2026-11-15, quiet
unless said otherwise. Another machine has other values: measure again, and give `Costs` yours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final


@dataclass(frozen=True, slots=True)
class Cost:
    """A figure. `source`: the command that measured it, or whom it is quoted from."""

    value: float
    unit: str
    source: str


@dataclass(frozen=True, slots=True)
class Costs:
    """What the model is given. Processor times are those of one core of that machine."""

    # the leader
    report_s: Cost  # to take one report of an agent
    report_worker_s: Cost  # for each worker in it
    agent_bytes: Cost  # of memory, for a connected agent
    plan_s: Cost  # for each worker, when nothing changes
    reconcile_s: Cost  # for each worker, when nothing changes
    tell_order_s: Cost  # for one order of a view, whatever its size
    tell_member_s: Cost  # for each member in the view, once for each agent that is told of it
    tell_member_before_s: Cost  # the same, for each order, when none shared anything
    members_first_s: Cost  # for each agent that a new leader reads
    members_join_s: Cost  # for each agent that is there when one more joins
    members_join_before_s: Cost  # the same when all were read again
    # the coordination plane
    session_bytes: Cost
    watch_bytes: Cost
    request_s: Cost  # a ping or a small read
    event_s: Cost  # an event to one watcher
    # training
    meeting_s: Cost  # of a member, for each peer that it meets
    message_s: Cost  # of a member, to send one message to a peer and receive one, in an exchange
    byte_s: Cost  # of a member, for a byte that it sends and one that it receives, in an exchange
    manifest_bytes: Cost  # for each part
    manifest_s: Cost  # for each part
    part_bytes_per_s: Cost  # a part is hashed and written
    worker_years: Cost  # until a worker fails, with its machine
    # serving
    envoy_request_s: Cost
    replica_request_s: Cost
    envoy_check_s: Cost
    replica_check_s: Cost
    ask_s: Cost  # a controller asks a replica for its counts
    files_service_s: (
        Cost  # of a gateway's turn, for each service that it knows and that is the same
    )
    files_replica_s: Cost  # the same for each replica
    take_service_s: Cost  # until Envoy has taken a change, for each service that it knows
    prediction_bytes: Cost
    prediction_s: Cost

    def table(self) -> Iterator[tuple[str, Cost]]:
        for field in fields(self):
            yield field.name, getattr(self, field.name)


_REPORTS: Final = "python -m bench.scale.reports"
_RECORDS: Final = "python -m bench.scale.records"
_MEMBERS: Final = "python -m bench.scale.members"
_SESSIONS: Final = "python -m bench.scale.sessions"
_MEETING: Final = "python -m bench.scale.meeting"
_SERVING: Final = "python -m bench.scale.serving"

MEASURED: Final = Costs(
    report_s=Cost(200e-6, "s", f"{_REPORTS} --workers 1"),
    report_worker_s=Cost(25e-6, "s/worker", f"{_REPORTS}: 410 to 490 us with ten"),
    agent_bytes=Cost(130e3, "bytes", _REPORTS),
    plan_s=Cost(3.0e-6, "s/worker", "python -m bench.control.plan: idle, 10,000 workers"),
    reconcile_s=Cost(3.0e-6, "s/worker", "python -m bench.control.reconcile: quiet, 10,000"),
    tell_order_s=Cost(15e-6, "s", f"{_RECORDS}: 100 members"),
    tell_member_s=Cost(0.24e-6, "s/member", f"{_RECORDS}: 10,000 members"),
    tell_member_before_s=Cost(3.6e-6, "s/member", f"{_RECORDS}, before the mend"),
    members_first_s=Cost(0.20e-3, "s/agent", _MEMBERS),
    members_join_s=Cost(2.5e-6, "s/agent", _MEMBERS),
    members_join_before_s=Cost(0.28e-3, "s/agent", f"{_MEMBERS}, before the mend"),
    session_bytes=Cost(2.7e3, "bytes", _SESSIONS),
    watch_bytes=Cost(106, "bytes", _SESSIONS),
    request_s=Cost(12e-6, "s", _SESSIONS),
    event_s=Cost(8.5e-6, "s", _SESSIONS),
    meeting_s=Cost(
        0.37e-3, "s/peer", "python -m bench.scale.listeners: 2,000 call one (busy machine)"
    ),
    message_s=Cost(72e-6, "s", f"{_MEETING} --chunk-kb 64: 128 members, without the bytes"),
    byte_s=Cost(0.25e-9, "s/byte", f"{_MEETING}: 8 members"),
    manifest_bytes=Cost(205, "bytes/part", _RECORDS),
    manifest_s=Cost(3.5e-6, "s/part", _RECORDS),
    part_bytes_per_s=Cost(279e6, "bytes/s", "python -m bench.storage: put_part, new"),
    worker_years=Cost(5.8, "years", "Llama Team: The Llama 3 Herd of Models (2024), table 5"),
    envoy_request_s=Cost(99e-6, "s", f"{_SERVING}: 99 and 138 us in two runs"),
    replica_request_s=Cost(184e-6, "s", f"{_SERVING}: 184 and 229 us in two runs"),
    envoy_check_s=Cost(94e-6, "s", _SERVING),
    replica_check_s=Cost(29e-6, "s", _SERVING),
    ask_s=Cost(534e-6, "s", _SERVING),
    files_service_s=Cost(0.14e-3, "s/service", f"{_SERVING}: 1,000 services"),
    files_replica_s=Cost(4.5e-6, "s/replica", f"{_SERVING}: 100 services of 160 replicas"),
    take_service_s=Cost(0.93e-3, "s/service", f"{_SERVING}: 300 services"),
    prediction_bytes=Cost(770, "bytes", _SERVING),
    prediction_s=Cost(8.5e-6, "s", _SERVING),
)
