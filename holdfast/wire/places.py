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
# Below these a worker may read and write with its own, lesser credential: what it publishes, and
# the service that it is a replica of. `holdfast.models` and `holdfast.serve` keep facts there.
MODELS_PATH: Final = "/holdfast/models"
SERVICES_PATH: Final = "/holdfast/services"
WORKER_PATHS: Final = (MODELS_PATH, SERVICES_PATH)
