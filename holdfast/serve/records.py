"""A service as values, and where they lie in the coordination plane.

    /holdfast/services/SERVICE               Service: what its users want
        /course                              Course: what the conductor has decided; fenced
        /replicas/WORKER                     Replica: ephemeral, written by the replica itself
        /history                             decisions and their reasons (bounded)
    /holdfast/gateways/GATEWAY               Gateway: ephemeral, written by the gateway itself

Replicas and gateways are members (`holdfast.coordination.Membership`, joined with the document of
their value): their nodes are read with `Membership.members`, or by `member_of`.

The processes of a service are the workers of the job `job_name(SERVICE)`. Replicas and gateways
read the course and follow it; while nobody can be read they go on with the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeVar

from holdfast.wire import documents
from holdfast.wire.places import GATEWAYS_PATH, SERVICES_PATH
from holdfast.wire.room import Resources

SERVICES: Final = SERVICES_PATH
GATEWAYS: Final = GATEWAYS_PATH
CONDUCTOR: Final = "/holdfast/conductor"  # election of the process that advances rollouts
WEIGHT_TOTAL: Final = 10_000  # weights of arms are parts of it


def service_path(service: str) -> str:
    return f"{SERVICES}/{service}"


def course_path(service: str) -> str:
    return f"{SERVICES}/{service}/course"


def replicas_path(service: str) -> str:
    return f"{SERVICES}/{service}/replicas"


def replica_path(service: str, worker: int) -> str:
    return f"{SERVICES}/{service}/replicas/{worker}"


def history_path(service: str) -> str:
    return f"{SERVICES}/{service}/history"


def gateway_path(gateway: str) -> str:
    return f"{GATEWAYS}/{gateway}"


_T = TypeVar("_T")


def member_of(path: str, kind: type[_T], data: bytes) -> _T:
    """The value of a member's node: `Membership` puts a mark of its owner around the document."""
    plain = documents.parsed(path, data)
    if not isinstance(plain, dict) or "data" not in plain:
        raise documents.corrupt(path, "it is not a member's node")
    return documents.from_document(path, kind, plain["data"])


def job_name(service: str) -> str:
    """The job whose workers are the service's replicas."""
    return f"serve.{service}"


# --- what users want -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RolloutPolicy:
    """How a new version takes over: the canary's share in steps of `WEIGHT_TOTAL`, each held for
    `hold_s`; and when it is taken back by itself."""

    steps: tuple[int, ...] = (500, 2_500, 5_000)
    hold_s: float = 5.0
    ready_s: float = 300.0  # a version that no replica has loaded by then has failed
    requests_min: int = 20  # fewer say nothing about a version
    error_rate_max: float = 0.01  # above the old version's own
    latency_ratio_max: float = 2.0  # of the p99, to the old version's
    latency_slack_ms: float = 5.0  # a difference smaller than this is noise


@dataclass(frozen=True, slots=True)
class Limits:
    """What a service does with too much: `queue_max` requests wait in a replica, the next gets 503;
    `rate_per_s` for each gateway (0: no limit)."""

    queue_max: int = 512
    batch_max: int = 64
    body_bytes_max: int = 16 * 1024 * 1024
    timeout_s: float = 10.0
    rate_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Service:
    """What users want of a service. `target` is an alias' name or a version's number.

    `pinned`: serve exactly this version and no other now, whatever the target says (a rollback, an
    A/B test's end); moving the target, or `holdfast rollout`, takes it back. `split`: versions and
    their weights, held until it is changed (A/B); empty: the rollout decides.
    """

    name: str
    model: str
    target: str
    replicas_min: int = 1
    replicas_max: int = 1
    replicas_wanted: int | None = None  # None: autoscaling decides between the two
    resources: Resources = field(default_factory=lambda: Resources(cpu=1.0))
    priority: int = 100
    queue: str = "default"
    policy: RolloutPolicy = RolloutPolicy()
    limits: Limits = Limits()
    pinned: int | None = None
    split: Mapping[int, int] = field(default_factory=dict)
    sticky_header: str = "x-user"
    keys: tuple[str, ...] = ()  # SHA-256 of API keys, hexadecimal; empty: none is asked for
    operator_keys: tuple[str, ...] = ()  # of those who may load and unload; empty: nobody may
    cache_entries: int = 0  # answers kept in each replica; 0: none
    redis: str = ""  # redis://... of a cache that replicas share
    log_predictions: bool = False
    asked: int = 0  # counts the changes by users: a conductor knows that it has seen them
    wishes: int = 0  # counts those of them that say which version to serve: what failed is retried
    created_s: float = 0.0
    # What gateways show to replicas; "": one of an earlier version, which gets one soon.
    secret: str = field(default="", repr=False)


# --- what the conductor decides ------------------------------------------------------------------


class Stage(Enum):
    """Where a rollout stands."""

    STARTING = "starting"  # the first version is not served yet
    STEADY = "steady"  # one version is served; the previous one may be kept warm
    LOADING = "loading"  # replicas load the next version beside the old one
    SHIFTING = "shifting"  # the next version has a share of the requests
    SPLIT = "split"  # an A/B test: weights as users gave them


@dataclass(frozen=True, slots=True)
class Arm:
    """A share of the requests: `weight` of `WEIGHT_TOTAL` go to `version`. The first arm is the
    stable one; users leave an arm only when its weight shrinks."""

    name: str
    version: int
    weight: int


@dataclass(frozen=True, slots=True)
class Leaving:
    """A version that is held although nothing is sent to it any more: since the course of this
    number, and since when. A gateway that has not applied that course may still send to it."""

    course: int
    since_s: float


@dataclass(frozen=True, slots=True)
class Course:
    """What is decided for a service. `number` grows with every change.

    `hold`: what every replica shall have loaded, the most needed first; what is not in it may be
    unloaded. `arms`: where requests go; empty: nowhere yet. `since_s`: since when the stage and the
    arms are these; of a split, since users asked for it. `failed`: versions that were taken back,
    with the reason; they are not tried again until users ask anew (`wishes`). `leaving`: those in
    `hold` that nobody needs any more.
    """

    number: int
    stage: Stage
    hold: tuple[int, ...] = ()
    arms: tuple[Arm, ...] = ()
    stable: int | None = None
    previous: int | None = None
    next: int | None = None
    since_s: float = 0.0
    reason: str = ""
    failed: Mapping[int, str] = field(default_factory=dict)
    asked: int = 0
    wishes: int = 0
    replicas: int = 1  # how many the job shall have
    leaving: Mapping[int, Leaving] = field(default_factory=dict)


# --- what is observed ----------------------------------------------------------------------------


class Load(Enum):
    """What a replica has made of a version that it shall hold."""

    LOADING = "loading"
    READY = "ready"  # loaded, warm, and its example gives what it should
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Loaded:
    state: Load
    reason: str = ""
    since_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica, as it says of itself. `course` is the newest that it has followed."""

    service: str
    worker: int
    host: str
    http_port: int
    grpc_port: int
    node: str = ""
    region: str = ""
    versions: Mapping[int, Loaded] = field(default_factory=dict)
    draining: bool = False
    course: int = 0
    started_s: float = 0.0
    trust: str = ""  # a certificate (PEM) by whose key its TLS is signed; "": it speaks plain text


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway, as it says of itself. `address`: a URL, without a path. `applied`: for each
    service the newest course that its Envoy has taken, and that is remembered. `why`: what keeps it
    from following; "": nothing."""

    name: str
    region: str
    address: str
    applied: Mapping[str, int] = field(default_factory=dict)
    why: str = ""


@dataclass(frozen=True, slots=True)
class Counts:
    """What a replica has counted of one version since it loaded it (`GET /holdfast/stats`).

    `errors`: answers of 5xx that the model is to blame for, not full queues. `buckets`: answers
    by latency, each bucket's upper bound in `LATENCY_BOUNDS_MS`, the last one without bound.
    """

    requests: int = 0
    errors: int = 0
    buckets: tuple[int, ...] = ()


# Two for each doubling, from a quarter of a millisecond to eight seconds.
LATENCY_BOUNDS_MS: Final = tuple(round(0.25 * 2 ** (half / 2), 3) for half in range(31))


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """What a replica's cache has counted. `joined`: got the answer of an equal request that was
    being computed. `errors`: what Redis failed to do. `shared`: Redis answers now."""

    hits: int = 0
    shared_hits: int = 0
    joined: int = 0
    misses: int = 0
    errors: int = 0
    entries: int = 0
    bytes: int = 0
    shared: bool = False


@dataclass(frozen=True, slots=True)
class ReplicaStats:
    """The whole answer of `GET /holdfast/stats`."""

    worker: int
    waiting: int  # requests in the queue now
    running: int  # requests that are computed now
    refused: int  # answered 503 because the queue was full
    versions: Mapping[int, Counts] = field(default_factory=dict)
    cache: CacheCounts = CacheCounts()
