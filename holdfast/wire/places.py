"""Paths of the coordination plane that processes of several kinds know."""

from __future__ import annotations

from typing import Final

LEADER_PATH: Final = "/holdfast/leader"
# Where the leader says how it is reached, beside the election's own nodes.
CONTACT_PATH: Final = f"{LEADER_PATH}/contact"
JOBS_PATH: Final = "/holdfast/jobs"
QUEUES_PATH: Final = "/holdfast/queues"
SECRETS_PATH: Final = "/holdfast/secrets"
NODES_PATH: Final = "/holdfast/nodes"
GATEWAYS_PATH: Final = "/holdfast/gateways"
# Below it every worker may read and write with its own, lesser credential: what it publishes.
MODELS_PATH: Final = "/holdfast/models"
# Of these only the replicas of a service may read what is theirs, and write below their own names.
SERVICES_PATH: Final = "/holdfast/services"
REPLICAS_NAME: Final = "replicas"
REPLICA_TURNS_NAME: Final = "replicas-turns"  # as `Membership` has it
COURSE_NAME: Final = "course"
# The job of a service's replicas is called so, and then as the service.
SERVICE_JOB: Final = "serve."
