"""What a worker and its agent say to each other: one JSON object a line, over a Unix socket.

    worker   {"say": {"ready", "view", "step", ...}}    what is true of it now; also a sign of life
             {"parts": {"attempt", "parts", "missed"}}  a share that is durable, or missed
             {"shared": {"wants", "follows"}}           all that it wants to hold or follows
    agent    {"give_view": ...}  {"take_share": ...}    an order, as it came (`wire.values`)
             {"shared": {id: ...}}  {"config": ...}     what became of that (`wire.sharing`)

All of these are levels: each may be said twice, and all are said again on a new connection. A line
of a kind that is not known is passed over, since the other side may be of a newer version; one that
is not understood is a `Refused`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from holdfast.wire.errors import Refused, Usage

# In the environment of a worker.
FOLDER_VARIABLE: Final = "HOLDFAST_SCRATCH"
JOB_VARIABLE: Final = "HOLDFAST_JOB"
WORKER_VARIABLE: Final = "HOLDFAST_WORKER"
PORTS_VARIABLE: Final = "HOLDFAST_PORTS"
HOST_VARIABLE: Final = "HOLDFAST_HOST"  # where it listens on its ports
STORE_VARIABLE: Final = "HOLDFAST_STORE"
COORDINATION_VARIABLE: Final = "HOLDFAST_COORDINATION"  # the address of the plane
LOG_TOPIC_VARIABLE: Final = "HOLDFAST_LOG_TOPIC"  # set: the agent tells its output on a topic
TOPICS_VARIABLE: Final = "HOLDFAST_TOPICS"  # where topics are, if the cluster uses them
# In its folder: the same, also if something uses topics for the first time while it runs.
TOPICS_NAME: Final = "topics-address"
BUNDLE_VARIABLE: Final = "HOLDFAST_BUNDLE"  # the digest of the code that it runs
LANES_VARIABLE: Final = "HOLDFAST_LANES"
MODE_VARIABLE: Final = "HOLDFAST_MODE"
REGION_VARIABLE: Final = "HOLDFAST_REGION"  # where its machine is; empty: nowhere in particular
SETTINGS_VARIABLE: Final = "HOLDFAST_SETTINGS"  # those of the job file: a JSON object of texts
NETWORK_VARIABLE: Final = "HOLDFAST_NETWORK"  # "trusted": no TLS between machines
EXCHANGE_VARIABLE: Final = "HOLDFAST_EXCHANGE"  # set by the job: "tcp": workers share no memory
# Set by the job: in how many steps each worker's arithmetic is checked once.
CHECK_VARIABLE: Final = "HOLDFAST_CHECK_STEPS"
WARM_VARIABLE: Final = "HOLDFAST_WARM"  # set by the job: "0" start cold, "1" wait for torch
# Settings that say how much a step takes: whole numbers from 1 on, live.
SIZE_SETTINGS: Final = ("lane_batch", "accumulate")
SERVES: Final = "serve"  # the mode of a worker that is a replica
REPLICA_MODULE: Final = "holdfast.serve.replica"  # the program of a service's replicas
# In the worker's folder.
SOCKET_NAME: Final = "agent.sock"
WORD_NAME: Final = "word"
SECRET_NAME: Final = "secret"  # noqa: S105  (a file's name) see `holdfast.system.job_credentials`
IDENTITY_NAME: Final = "identity.pem"
TRUST_NAME: Final = "trust.pem"
DONE: Final = "done"
LEFT: Final = "left"
REFUSED: Final = "refused"  # its error would come again, whoever tries


class Extension(Protocol):
    """Messages of another part of a worker on its line. Called with `AgentClient.changing` held."""

    kinds: frozenset[str]

    def unsent(self, *, anew: bool) -> bytes:
        """What is to be sent now; all of it, if the connection is a new one."""

    def receive(self, kind: str, body: Any) -> None:
        """The agent has said this."""


class WorkerPlace(NamedTuple):
    """What a worker's environment says of it."""

    folder: Path
    job: str
    worker: int
    ports: tuple[int, ...]
    host: str


def worker_of(environment: Mapping[str, str]) -> WorkerPlace | None:
    """The worker that this environment is of; None: no agent has started it."""
    folder = environment.get(FOLDER_VARIABLE)
    if not folder:
        return None
    ports = environment.get(PORTS_VARIABLE, "")
    try:
        job, worker = environment[JOB_VARIABLE], int(environment[WORKER_VARIABLE])
        numbers = tuple(int(port) for port in ports.split(",") if port)
    except (KeyError, ValueError) as error:
        raise Usage(
            f"{FOLDER_VARIABLE} is set, but the rest of a worker's environment is not",
            why=f"{type(error).__name__}: {error}",
            fix=f"unset {FOLDER_VARIABLE}, or let an agent start the script",
        ) from error
    host = environment.get(HOST_VARIABLE, "127.0.0.1")
    return WorkerPlace(Path(folder), job, worker, numbers, host)


def line(kind: str, body: Any) -> bytes:
    return json.dumps({kind: body}, separators=(",", ":")).encode() + b"\n"


def parse(raw: bytes) -> tuple[str, Any]:
    """The kind and the body of a line; `Refused` if it is not one."""
    try:
        message = json.loads(raw)
        ((kind, body),) = message.items()
    except (ValueError, AttributeError) as error:
        raise not_understood(raw, error) from error
    return kind, body


def not_understood(raw: bytes, error: Exception | None = None) -> Refused:
    return Refused(
        f"a line between a worker and its agent is not understood: {raw[:100]!r}",
        why=f"{type(error).__name__}: {error}" if error else "it has no end",
        fix="run the worker with the same version of holdfast as the agent",
    )


def socket_path(folder: int) -> str:
    """A short path of the socket in the open `folder`: a socket's path has 107 bytes at most."""
    return f"/proc/self/fd/{folder}/{SOCKET_NAME}"
