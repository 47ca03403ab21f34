"""Names that processes of several kinds agree on: paths of the coordination plane, names in
certificates, and what may be a name at all."""

from __future__ import annotations

import re
from typing import Final

from holdfast.wire.errors import Usage

LEADER_PATH: Final = "/holdfast/leader"
# Where the leader says how it is reached, beside the election's own nodes.
CONTACT_PATH: Final = f"{LEADER_PATH}/contact"
JOBS_PATH: Final = "/holdfast/jobs"
QUEUES_PATH: Final = "/holdfast/queues"
SECRETS_PATH: Final = "/holdfast/secrets"
NODES_PATH: Final = "/holdfast/nodes"
GATEWAYS_PATH: Final = "/holdfast/gateways"
# Where topics are, once something uses them.
TOPICS_PATH: Final = "/holdfast/topics"
# Below it every worker may read and write with its own, lesser credential: what it publishes.
MODELS_PATH: Final = "/holdfast/models"
# Of these only the replicas of a service may read what is theirs, and write below their own names.
SERVICES_PATH: Final = "/holdfast/services"
REPLICAS_NAME: Final = "replicas"
REPLICA_TURNS_NAME: Final = "replicas-turns"  # as `Membership` has it
PLAN_NAME: Final = "plan"
# What users asked of a job or a service, beside its history.
AUDIT_NAME: Final = "audit"
HISTORY_NAME: Final = "history"
# How far events were told, and who tells them.
EVENTS_PATH: Final = "/holdfast/events"
# Election of the process that advances rollouts.
ROLLOUT_CONTROLLER_PATH: Final = "/holdfast/rollout-controller"
# The job of a service's replicas is called so, and then as the service.
SERVICE_JOB: Final = "serve."
# Every coordinator's certificate has this name, so that an agent need not know its address to
# know that it speaks to a coordinator of its cluster.
COORDINATOR: Final = "coordinator.holdfast.internal"
# What may be in a certificate, a path of the coordination plane and a log line alike.
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def checked_name(what: str, name: str) -> str:
    """The name, if it can be one of a cluster or a node."""
    if not _NAME.fullmatch(name):
        raise Usage(
            f"{name[:100]!r} cannot be the name of a {what}",
            why="a name has 1 to 63 letters, digits, dots, dashes and underscores",
            fix="choose another name",
        )
    return name
