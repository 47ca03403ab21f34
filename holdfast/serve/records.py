"""A service as values, and where they lie in the coordination plane.

    /holdfast/services/SERVICE               ServiceSpec: what its users want
        /plan                              RolloutPlan: what the controller has decided; fenced
        /replicas/WORKER                     Replica: ephemeral, written by the replica itself
        /history                             decisions and their reasons (bounded)
    /holdfast/gateways/GATEWAY               Gateway: ephemeral, written by the gateway itself

Replicas and gateways are members (`holdfast.coordination.Membership`, joined with the document of
their value): their nodes are read with `Membership.members`, or by `member_of`.

The processes of a service are the workers of the job `job_name(SERVICE)`. Replicas and gateways
read the plan and follow it; while nobody can be read they go on with the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeVar

from holdfast.wire import documents
from holdfast.wire.limits import EJECT_FAILURES, EJECT_S
from holdfast.wire.names import (
    GATEWAYS_PATH,
    PLAN_NAME,
    REPLICA_TURNS_NAME,
    REPLICAS_NAME,
    ROLLOUT_CONTROLLER_PATH,
    SERVICE_JOB,
    SERVICES_PATH,
)
from holdfast.wire.resources import Resources

# Bodies that a replica has in its hands at once; one more that is not small gets 503.
BODIES_BYTES_MAX: Final = 1024 * 1024 * 1024
# A version's outputs are compared with the stable version's on the same requests, one at a time and
# while neither has others waiting. A replica spends this share of its time on that: with more, the
# requests that wait for such a computation would show in the p99.
SHADOW_SHARE: Final = 0.05
# A replica that breaks so many requests one after the other gets none for a while, at least the
# second; the third is how often that is looked at. Answers of the model do not count.
EJECT_S_MAX: Final = 20.0
# A part of the requests in flight that may be retries. When a region is lost, all of them are. What
# a full queue has refused is none of them but for a few (`ELSEWHERE_SHARE`).
RETRY_BUDGET_PERCENT: Final = 100.0
# What Envoy keeps open to, and has waiting for, the replicas of one version. Replicas refuse far
# earlier; this is for Envoy's own memory.
UPSTREAM_REQUESTS_MAX: Final = 65_536
# A new connection on the same network, or none.
UPSTREAM_CONNECT_S: Final = 1.0

SERVICES: Final = SERVICES_PATH
GATEWAYS: Final = GATEWAYS_PATH
ROLLOUT_CONTROLLER: Final = ROLLOUT_CONTROLLER_PATH
WEIGHT_TOTAL: Final = 10_000  # weights of variants are parts of it


def service_path(service: str) -> str:
    return f"{SERVICES}/{service}"


def plan_path(service: str) -> str:
    return f"{SERVICES}/{service}/{PLAN_NAME}"


def replicas_path(service: str) -> str:
    return f"{SERVICES}/{service}/{REPLICAS_NAME}"


def replica_turns_path(service: str) -> str:
    return f"{SERVICES}/{service}/{REPLICA_TURNS_NAME}"


def history_path(service: str) -> str:
    return f"{SERVICES}/{service}/history"


_T = TypeVar("_T")


def member_of(path: str, kind: type[_T], data: bytes) -> _T:
    """The value of a member's node: `Membership` puts a mark of its owner around the document."""
    plain = documents.parsed(path, data)
    if not isinstance(plain, dict) or "data" not in plain:
        raise documents.corrupt(path, "it is not a member's node")
    return documents.from_document(path, kind, plain["data"])


def job_name(service: str) -> str:
    """The job whose workers are the service's replicas."""
    return f"{SERVICE_JOB}{service}"


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
class Guards:
    """What the outputs of a version that is rolled out must be like; one that breaks a guard is
    taken back. None: that is not looked at.

    `nonfinite_max`, `outside_max`: the share of its answers with a NaN or infinity, or with a value
    outside of `ranges` (lowest and highest, by output), above the stable version's own share. The
    others compare it with the stable version on the same requests: by how much the mean or the
    standard deviation of an output may differ, in standard deviations of the stable version; and
    the share of rows whose largest value may stand elsewhere. A replica spends `shadow_share` of
    its time at most on that.
    """

    nonfinite_max: float | None = 0.0
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    outside_max: float = 0.0
    shift_max: float | None = None
    disagree_max: float | None = None
    shadow_share: float = SHADOW_SHARE

    @property
    def compares(self) -> bool:
        """Whether the next version computes requests of the stable one."""
        wanted = self.shift_max is not None or self.disagree_max is not None
        return wanted and self.shadow_share > 0


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """When a gateway leaves a replica alone: after `failures` broken requests one after the other,
    for `open_s`, the next time for longer, up to `open_s_max`. And what it keeps open at most:
    `requests_max` at once to a version, of these `retry_percent` again."""

    failures: int = EJECT_FAILURES
    open_s: float = EJECT_S
    open_s_max: float = EJECT_S_MAX
    connect_s: float = UPSTREAM_CONNECT_S
    requests_max: int = UPSTREAM_REQUESTS_MAX
    retry_percent: float = RETRY_BUDGET_PERCENT


@dataclass(frozen=True, slots=True)
class PredictionPolicy:
    """What of its predictions a service tells the topic `predictions.SERVICE` (`topic`: whether it
    does): a share of them (`sample`, by the request's id), without the values of the inputs that
    `redact` names, with the entities that the inputs or parameters in `keys` name. Tensors of more
    than `blob_bytes` go to the blob store. The topic and these blobs keep them for `keep_s`."""

    topic: bool = False
    sample: float = 1.0
    redact: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    blob_bytes: int = 64 * 1024
    keep_s: float = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What a service does with too much: `queue_max` requests wait in a replica, or as many as are
    computed within `wait_s` (0: a quarter of the time-out); the next gets 503. `rate_per_s` for
    each gateway (0: no limit)."""

    queue_max: int = 512
    batch_max: int = 64
    body_bytes_max: int = 16 * 1024 * 1024
    timeout_s: float = 10.0
    rate_per_s: float = 0.0
    wait_s: float = 0.0
    bodies_bytes_max: int = BODIES_BYTES_MAX  # of all requests in a replica's hands, if larger

    @property
    def patience_s(self) -> float:
        """How long a request may have to wait for its turn, as far as can be foreseen."""
        return self.wait_s or self.timeout_s / 4


@dataclass(frozen=True, slots=True)
class ServiceSpec:
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
    guards: Guards = Guards()
    breaker: BreakerPolicy = BreakerPolicy()
    pinned: int | None = None
    split: Mapping[int, int] = field(default_factory=dict)
    sticky_header: str = "x-user"
    route_by: str = ""  # the header whose value chooses the replica; "": whoever has least to do
    keys: tuple[str, ...] = ()  # SHA-256 of API keys, hexadecimal; empty: none is asked for
    operator_keys: tuple[str, ...] = ()  # of those who may load and unload; empty: nobody may
    cache_entries: int = 0  # answers kept in each replica; 0: none
    redis: str = ""  # redis://... of a cache that replicas share
    log_predictions: bool = False  # to a file
    predictions: PredictionPolicy = PredictionPolicy()  # to a topic
    # Counts the changes by users, so that a controller knows that it has seen them; and those of
    # them that say which version to serve: what had failed is tried again.
    revision: int = 0
    version_revision: int = 0
    created_s: float = 0.0
    # What gateways show to replicas; "": one of an earlier version, which gets one soon.
    secret: str = field(default="", repr=False)

    @staticmethod
    def of_older(plain: dict[str, Any]) -> dict[str, Any]:
        return documents.renamed(plain, asked="revision", wishes="version_revision")


# --- what the controller decides ------------------------------------------------------------------


class RolloutStage(Enum):
    """Where a rollout stands."""

    STARTING = "starting"  # the first version is not served yet
    STEADY = "steady"  # one version is served; the previous one may be kept warm
    LOADING = "loading"  # replicas load the next version beside the old one
    SHIFTING = "shifting"  # the next version has a share of the requests
    SPLIT = "split"  # an A/B test: weights as users gave them


@dataclass(frozen=True, slots=True)
class Variant:
    """A share of the requests: `weight` of `WEIGHT_TOTAL` go to `version`. The first variant is the
    stable one; users leave a variant only when its weight shrinks."""

    name: str
    version: int
    weight: int


@dataclass(frozen=True, slots=True)
class Leaving:
    """A version that is held although nothing is sent to it any more: since the plan of this
    number, and since when. A gateway that has not applied that plan may still send to it."""

    plan: int
    since_s: float


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """What is decided for a service. `number` grows with every change.

    `hold`: what every replica shall have loaded, the most needed first; what is not in it may be
    unloaded. `variants`: where requests go; empty: nowhere yet. `since_s`: since when the stage
    and the variants are these; of a split, since users asked for it. `failed`: versions that were
    taken back, with the reason; they are not tried again until users ask anew (`version_revision`).
    `leaving`: those in `hold` that nobody needs any more.
    """

    number: int
    stage: RolloutStage
    hold: tuple[int, ...] = ()
    variants: tuple[Variant, ...] = ()
    stable: int | None = None
    previous: int | None = None
    next: int | None = None
    since_s: float = 0.0
    reason: str = ""
    failed: Mapping[int, str] = field(default_factory=dict)
    revision: int = 0
    version_revision: int = 0
    replicas: int = 1  # how many the job shall have
    leaving: Mapping[int, Leaving] = field(default_factory=dict)

    @staticmethod
    def of_older(plain: dict[str, Any]) -> dict[str, Any]:
        plain = documents.renamed(
            plain, arms="variants", asked="revision", wishes="version_revision"
        )
        leaving: dict[str, dict[str, Any]] = plain.get("leaving", {})
        dated = {version: documents.renamed(one, course="plan") for version, one in leaving.items()}
        return {**plain, "leaving": dated}


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
    """A replica, as it says of itself. `plan` is the newest that it has followed."""

    service: str
    worker: int
    host: str
    http_port: int
    grpc_port: int
    node: str = ""
    region: str = ""
    versions: Mapping[int, Loaded] = field(default_factory=dict)
    draining: bool = False
    plan: int = 0
    started_s: float = 0.0
    trust: str = ""  # a certificate (PEM) by whose key its TLS is signed; "": it speaks plain text
    # Predictions that it could not tell or write down, and what is in the way now.
    predictions_dropped: int = 0
    predictions_trouble: str = ""

    @staticmethod
    def of_older(plain: dict[str, Any]) -> dict[str, Any]:
        return documents.renamed(plain, course="plan")


class Breaker(Enum):
    """Whether a gateway sends requests to a replica."""

    CLOSED = "closed"  # it does
    OPEN = "open"  # it does not: too many were broken one after the other
    HALF_OPEN = "half-open"  # it does again, and none was answered yet


@dataclass(frozen=True, slots=True)
class BreakerState:
    """Of one replica, as one gateway sees it; `since_s` by the gateway's clock."""

    state: Breaker
    since_s: float


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway, as it says of itself. `address`: a URL, without a path. `applied`: for each
    service the newest plan that its Envoy has taken, and that is remembered. `why`: what keeps it
    from following; "": nothing. `breakers`: by service and replica; those that are not named are
    closed, and were never open or long ago."""

    name: str
    region: str
    address: str
    applied: Mapping[str, int] = field(default_factory=dict)
    why: str = ""
    breakers: Mapping[str, Mapping[int, BreakerState]] = field(default_factory=dict)


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
class Compared:
    """One output of a version beside the stable version's, on the same requests. The sums are of
    its finite values and of their squares; `rows`: those that name a class, or are a label, and
    `disagreed` those of them in which the two versions name another one."""

    requests: int = 0
    values: int = 0
    live_sum: float = 0.0
    live_squares: float = 0.0
    next_sum: float = 0.0
    next_squares: float = 0.0
    rows: int = 0
    disagreed: int = 0


@dataclass(frozen=True, slots=True)
class OutputStats:
    """What a replica has seen of a version's outputs since the present rollout began: of so many
    `answers`, by output, those that are not finite, and those outside of their range."""

    answers: int = 0
    nonfinite: Mapping[str, int] = field(default_factory=dict)
    outside: Mapping[str, int] = field(default_factory=dict)
    compared: Mapping[str, Compared] = field(default_factory=dict)


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
class PredictionCounts:
    """What a replica has told of its predictions, to the topic; `dropped`: what it could not tell,
    there or in its file. `waiting`: in its queues. `why`: what is in its way now; "": nothing."""

    sent: int = 0
    dropped: int = 0
    waiting: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class ReplicaStats:
    """The whole answer of `GET /holdfast/stats`."""

    worker: int
    waiting: int  # requests in the queue now
    running: int  # requests that are computed now
    refused: int  # answered 503 because the queue was full
    versions: Mapping[int, Counts] = field(default_factory=dict)
    cache: CacheCounts = CacheCounts()
    watched: Mapping[int, OutputStats] = field(default_factory=dict)  # in a rollout: both versions
    predictions: PredictionCounts = PredictionCounts()
