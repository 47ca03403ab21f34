"""Views, orders and reports as bytes: one spelling of each, for nodes, streams and lines.

Each is JSON: the fields of its dataclass by their names. The lanes of a view are runs,
`[first, end, first, end, …]`, for a worker's lanes are few pieces; its bytes are the same in its
node, on the stream to an agent and on the line to a worker. An order is `{kind: fields}`. A field
that is not known is passed over, and one that is missing has its default (docs/upgrades.md).

Whatever comes over a network is checked here: what cannot be a value of ours is `Refused`, never a
value that only looks like one. Reports are cut to fit, so that a long traceback never keeps an
agent from reporting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.wire import worker_messages
from holdfast.wire.documents import FORMAT, NOT_READ, prepared
from holdfast.wire.errors import BugError, Refused
from holdfast.wire.limits import RPC_MESSAGE_BYTES_MAX
from holdfast.wire.orders import (
    Forget,
    GiveSettings,
    GiveView,
    Order,
    StartWorker,
    StopWorker,
    TakeShare,
    View,
)
from holdfast.wire.probes import Probe
from holdfast.wire.reports import NodeFacts, Part, WorkerFacts
from holdfast.wire.resources import Resources

# What a report keeps of each traceback when the whole does not fit.
EXIT_DETAIL_SHORT_CHARACTERS: Final = 200

T = TypeVar("T")


def malformed(what: str, why: str = "") -> Refused:
    """A message that is not one of this protocol."""
    return Refused(
        f"a message is not understood: {what}",
        why=why or "the two sides are not of one version, or this is not an agent of Holdfast",
        fix="run the same version of holdfast on both machines",
    )


def text(words: str) -> str:
    """The same text, without what cannot be encoded: a process may print anything."""
    return words.encode("utf-8", "replace").decode()


# --- views ----------------------------------------------------------------------------------


class _ViewMessage(msgspec.Struct):
    """A view as it is written down."""

    number: int
    lanes: dict[str, list[int]]
    restore_step: int | None
    manifest: str
    addresses: dict[str, str]
    settings: int
    format: int = FORMAT

    def value(self) -> View:
        if self.format != FORMAT:
            raise ValueError(f"its format is {self.format}, and this version knows {FORMAT}")
        lanes = {_worker(worker): _lanes(runs) for worker, runs in self.lanes.items()}
        addresses = {_worker(worker): address for worker, address in self.addresses.items()}
        start = (self.restore_step, self.manifest)
        return View(self.number, lanes, *start, addresses, self.settings)


class _LastView:
    """The bytes of the view that was written last. All members of a view are told of it one after
    the other: without this, N members would cost N times N."""

    def __init__(self) -> None:
        self._made: tuple[View, bytes] | None = None

    def bytes_of(self, view: View) -> bytes:
        made = self._made
        if made is None or made[0] is not view:
            made = self._made = (view, _view_bytes(view))
        return made[1]


_last_view: Final = _LastView()
_view_encoder: Final = msgspec.json.Encoder(order="sorted")
_view_decoder: Final = msgspec.json.Decoder(_ViewMessage)


def view_bytes(view: View) -> bytes:
    """The one spelling of a view. The same object is spelled once."""
    return _last_view.bytes_of(view)


def _view_bytes(view: View) -> bytes:
    lanes = {str(worker): _runs(lanes) for worker, lanes in view.lanes.items()}
    addresses = {str(worker): address for worker, address in view.addresses.items()}
    start = (view.restore_step, view.manifest)
    return _view_encoder.encode(_ViewMessage(view.number, lanes, *start, addresses, view.settings))


def view_from(raw: bytes) -> View:
    """The view in these bytes; raises one of `NOT_READ` if they are not one."""
    return _view_decoder.decode(raw).value()


def _worker(name: str) -> int:
    if not name.isdecimal():
        raise ValueError(f"{name!r} is not a worker")
    return int(name)


def _runs(lanes: Sequence[int]) -> list[int]:
    if lanes and lanes == tuple(range(lanes[0], lanes[0] + len(lanes))):
        return [lanes[0], lanes[0] + len(lanes)]
    runs: list[int] = []
    for lane in lanes:
        if runs and runs[-1] == lane:
            runs[-1] = lane + 1
        else:
            runs += [lane, lane + 1]
    return runs


def _lanes(runs: Sequence[int]) -> tuple[int, ...]:
    if len(runs) == 2 and runs[0] < runs[1]:
        return tuple(range(runs[0], runs[1]))
    if len(runs) % 2 or any(first >= end for first, end in zip(runs[::2], runs[1::2], strict=True)):
        raise ValueError(f"{str(runs)[:80]} are not runs of lanes")
    pairs = zip(runs[::2], runs[1::2], strict=True)
    return tuple(lane for first, end in pairs for lane in range(first, end))


# --- orders ---------------------------------------------------------------------------------


class _GiveViewMessage(msgspec.Struct, omit_defaults=True):
    """`GiveView` as it is written down. Without a view: that of the order before it in the same
    message, since members on one machine are told of a large view once."""

    node: str
    job: str
    worker: int
    view: msgspec.Raw | UnsetType = UNSET


class _GivenView(msgspec.Struct):
    node: str
    job: str
    worker: int
    view: _ViewMessage | UnsetType = UNSET


class Named(NamedTuple):
    """Which order it is, also of one that cannot be read."""

    kind: str
    job: str
    worker: int


_KINDS: Final[Mapping[str, Any]] = {
    "start_worker": StartWorker,
    "give_view": _GivenView,
    "give_settings": GiveSettings,
    "take_share": TakeShare,
    "stop_worker": StopWorker,
    "forget": Forget,
}
ORDER_KINDS: Final = frozenset(_KINDS)
_NAMES: Final[Mapping[type, str]] = {
    GiveView: "give_view",
    **{kind: name for name, kind in _KINDS.items()},
}
_encode: Final = msgspec.json.Encoder().encode


def order_bytes(order: Order, *, with_view: bool = True) -> bytes:
    """`with_view` False: it gives the view of the order before it in the same message."""
    body: Any = order
    if isinstance(order, GiveView):
        body = _GiveViewMessage(order.node, order.job, order.worker)
        if with_view:
            body.view = msgspec.Raw(view_bytes(order.view))
    return _encode({_NAMES[type(order)]: body})


def order_from(raw: bytes, before: Order | None = None) -> Order:
    """The order in these bytes. `before`: the order before it in the same message, whose view it
    may share."""
    return order_of(*worker_messages.parse(raw), before)


def order_of(kind: str, body: Any, before: Order | None = None) -> Order:
    """The order of this kind with these fields; `Refused` if it is none."""
    if kind not in _KINDS:
        raise malformed(f"an order of an unknown kind: {kind!r:.50}")
    try:
        prepared(_KINDS[kind])
        found = msgspec.convert(body, _KINDS[kind], str_keys=True)
        if not found.node or not found.job:
            raise ValueError(f"an order without a node or a job: {found.node!r}, {found.job!r}")
        if isinstance(found, _GivenView):
            return _with_its_view(found, before)
        _check(found)
    except NOT_READ as error:
        raise malformed(f"an order to {kind}", str(error)) from error
    order: Order = found
    return order


def _with_its_view(found: _GivenView, before: Order | None) -> GiveView:
    if not isinstance(found.view, UnsetType):
        return GiveView(found.node, found.job, found.worker, found.view.value())
    if not isinstance(before, GiveView) or before.job != found.job:
        raise ValueError(
            f"the same view for worker {found.worker} of {found.job}, and none before it"
        )
    return GiveView(found.node, found.job, found.worker, before.view)


def _check(order: Order) -> None:
    match order:
        case StartWorker():
            check_resources(order.resources)
            for probe in filter(None, (order.ready, order.live)):
                _check_probe(probe)
        case TakeShare() if not 0 <= order.share < order.shares:
            raise ValueError(f"share {order.share} of {order.shares}")


def check_resources(resources: Resources) -> None:
    """`ValueError` unless a machine can have it. Written so that a NaN fails too."""
    whole = min(resources.memory_bytes, resources.gpu, resources.disk_bytes)
    if not (0 <= resources.cpu < float("inf") and whole >= 0):
        raise ValueError(f"no machine has these resources: {resources}")


def _check_probe(probe: Probe) -> None:
    # Written so that a NaN fails too.
    if not (probe.every_s > 0 and probe.timeout_s > 0 and probe.failures > 0):
        raise ValueError(f"a probe every {probe.every_s} s, {probe.failures} failures")


def named(raw: bytes) -> Named:
    """Which order these bytes are, as far as they say."""
    try:
        kind, body = worker_messages.parse(raw)
        return Named(kind, str(body["job"]), int(body["worker"]))
    except (Refused, KeyError, TypeError, ValueError):
        return Named("", "", 0)


# --- reports --------------------------------------------------------------------------------

# Not strict: a metric that is no number travels as the text that says so.
_facts_decoder: Final = msgspec.json.Decoder(NodeFacts, strict=False)


def facts_bytes(facts: NodeFacts, bytes_max: int = RPC_MESSAGE_BYTES_MAX) -> bytes:
    """The snapshot as at most so many bytes: details for people are cut first."""
    raw = _facts_bytes(facts)
    if len(raw) <= bytes_max:
        return raw
    raw = _facts_bytes(replace(facts, workers=tuple(map(_shortened, facts.workers))))
    if len(raw) > bytes_max:
        raise BugError(
            f"the snapshot of {facts.node} has {len(raw)} bytes",
            why=f"it has {len(facts.workers)} workers; at most {bytes_max} bytes can be sent",
            fix="let fewer workers run on this machine, or write fewer parts in each share",
        )
    return raw


def _facts_bytes(facts: NodeFacts) -> bytes:
    if not all(all(map(isfinite, worker.metrics.values())) for worker in facts.workers):
        facts = replace(facts, workers=tuple(map(_with_sayable_metrics, facts.workers)))
    try:
        return _encode(facts)
    except UnicodeEncodeError:
        return _encode(replace(facts, workers=tuple(map(_with_texts, facts.workers))))


def _with_sayable_metrics(facts: WorkerFacts) -> WorkerFacts:
    metrics: Any = {
        name: value if isfinite(value) else str(value) for name, value in facts.metrics.items()
    }
    return replace(facts, metrics=metrics)


def _with_texts(facts: WorkerFacts) -> WorkerFacts:
    ended = facts.exit
    return replace(
        facts,
        exit=None if ended is None else replace(ended, detail=text(ended.detail)),
        unreadable_why=text(facts.unreadable_why),
        trouble=text(facts.trouble),
        preparing=text(facts.preparing),
    )


def _shortened(facts: WorkerFacts) -> WorkerFacts:
    if facts.exit is None:
        return facts
    return replace(
        facts, exit=replace(facts.exit, detail=facts.exit.detail[:EXIT_DETAIL_SHORT_CHARACTERS])
    )


def facts_from(raw: bytes) -> NodeFacts:
    """The snapshot in these bytes; `Refused` if they are not one."""
    try:
        facts = _facts_decoder.decode(raw)
        check_resources(facts.capacity)
    except NOT_READ as error:
        raise malformed("a snapshot of a node", str(error)) from error
    if not facts.node or not all(worker.job for worker in facts.workers):
        raise malformed("a snapshot of a node, or of a worker's job, without a name")
    counts = Counter((worker.job, worker.worker) for worker in facts.workers)
    twice = [key for key, count in counts.items() if count > 1]
    if twice:
        raise malformed(f"worker {twice[0]} is there twice")
    return facts


# --- what a worker says to its agent --------------------------------------------------------


class Say(msgspec.Struct):
    """What is true of a worker now."""

    ready: bool
    view: int
    step: int | None
    unreadable: list[int]
    suspects: list[int]
    waits: bool
    ending: bool
    metrics: dict[str, float]
    unreadable_why: str = ""


class SayParts(msgspec.Struct):
    """A share that is durable, or missed."""

    attempt: int
    parts: tuple[Part, ...]
    missed: bool


def line(kind: str, body: Say | SayParts) -> bytes:
    return worker_messages.line(kind, msgspec.to_builtins(body))


def parse_body(kind: type[T], raw: bytes, body: Any) -> T:
    """The body of a line as a value of `kind`; `Refused` if it is none."""
    try:
        prepared(kind)  # type: ignore[arg-type]  # a type can be hashed
        return msgspec.convert(body, kind, str_keys=True)
    except NOT_READ as error:
        raise worker_messages.not_understood(raw, error) from error
