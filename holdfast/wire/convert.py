"""Values and messages, in both directions.

Whatever came over the wire is checked here: what cannot be a value of ours is `Refused`, never a
value that only looks like one. Reports are cut to fit, so that a long traceback never keeps an
agent from reporting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from holdfast.wire.errors import BugError, Refused
from holdfast.wire.limits import EXIT_DETAIL_SHORT_CHARACTERS, RPC_MESSAGE_BYTES_MAX
from holdfast.wire.orders import (
    Attempt,
    Forget,
    GiveSettings,
    GiveView,
    Order,
    StartWorker,
    StopWorker,
    TakeShare,
    View,
)
from holdfast.wire.probes import Probe, ProbeKind
from holdfast.wire.proto import cluster_pb2 as pb
from holdfast.wire.reports import Exit, ExitKind, NodeFacts, Part, WorkerFacts, WorkerPhase
from holdfast.wire.room import Resources

M = TypeVar("M", bound=Message)
K = TypeVar("K")
V = TypeVar("V")

_PHASES: Final = {
    WorkerPhase.STARTING: pb.PHASE_STARTING,
    WorkerPhase.READY: pb.PHASE_READY,
    WorkerPhase.RUNNING: pb.PHASE_RUNNING,
    WorkerPhase.GONE: pb.PHASE_GONE,
}
_PHASES_BACK: Final = {int(number): phase for phase, number in _PHASES.items()}
_EXITS: Final = {
    ExitKind.DONE: pb.EXIT_KIND_DONE,
    ExitKind.LEFT: pb.EXIT_KIND_LEFT,
    ExitKind.STOPPED: pb.EXIT_KIND_STOPPED,
    ExitKind.ERROR: pb.EXIT_KIND_ERROR,
    ExitKind.MEMORY: pb.EXIT_KIND_MEMORY,
    ExitKind.SIGNAL: pb.EXIT_KIND_SIGNAL,
    ExitKind.HUNG: pb.EXIT_KIND_HUNG,
    ExitKind.LOST: pb.EXIT_KIND_LOST,
    ExitKind.REFUSED: pb.EXIT_KIND_REFUSED,
    ExitKind.DISK: pb.EXIT_KIND_DISK,
}
_EXITS_BACK: Final = {int(number): kind for kind, number in _EXITS.items()}


def malformed(what: str, why: str = "") -> Refused:
    """A message that is not one of this protocol."""
    return Refused(
        f"a message is not understood: {what}",
        why=why or "the two sides are not of one version, or this is not an agent of Holdfast",
        fix="run the same version of holdfast on both machines",
    )


def parsed(kind: type[M], raw: bytes) -> M:
    """The message in these bytes; `Refused` if they are not one."""
    message = kind()
    try:
        message.ParseFromString(raw)
    except DecodeError as error:
        raise malformed(f"{len(raw)} bytes are no {kind.__name__}", str(error)) from error
    return message


def text(words: str) -> str:
    """The same text, without what cannot be encoded: a process may print anything."""
    return words.encode("utf-8", "replace").decode()


# --- room and views -------------------------------------------------------------------------


def resources_message(value: Resources) -> pb.Resources:
    return pb.Resources(
        cpu=value.cpu,
        memory_bytes=value.memory_bytes,
        gpu=value.gpu,
        disk_bytes=value.disk_bytes,
    )


def resources_from(message: pb.Resources) -> Resources:
    found = Resources(message.cpu, message.memory_bytes, message.gpu, message.disk_bytes)
    # Written so that a NaN fails too.
    whole = min(found.memory_bytes, found.gpu, found.disk_bytes)
    if not (0 <= found.cpu < float("inf") and whole >= 0):
        raise malformed(f"no machine has this room: {found}")
    return found


class SharedView(NamedTuple):
    """A view as a message that several orders share: to be copied, not to be changed."""

    message: pb.View
    size_bytes: int


class _LastView:
    """The message of the view that was converted last. All members of a view are told of it one
    after the other: without this, N members would cost N times N."""

    def __init__(self) -> None:
        self._made: tuple[View, SharedView] | None = None

    def shared(self, view: View) -> SharedView:
        made = self._made
        if made is None or made[0] is not view:
            message = _view_message(view)
            made = self._made = (view, SharedView(message, message.ByteSize()))
        return made[1]


_last_view: Final = _LastView()


def _view_message(value: View) -> pb.View:
    members = [
        pb.Member(worker=worker, lanes=lanes, address=value.addresses.get(worker, ""))
        for worker, lanes in value.lanes.items()
    ]
    return pb.View(
        number=value.number,
        members=members,
        restore_step=value.restore_step,
        manifest=value.manifest,
        settings=value.settings,
    )


def _view_from(message: pb.View) -> View:
    lanes = _unique("worker", ((held.worker, tuple(held.lanes)) for held in message.members))
    restore_step = message.restore_step if message.HasField("restore_step") else None
    addresses = {held.worker: held.address for held in message.members if held.address}
    start = (restore_step, message.manifest)
    return View(message.number, lanes, *start, addresses, message.settings)


def _attempt_message(value: Attempt) -> pb.Attempt:
    return pb.Attempt(number=value.number, step=value.step, view=value.view, since_s=value.since_s)


def _attempt_from(message: pb.Attempt) -> Attempt:
    return Attempt(message.number, message.step, message.view, message.since_s)


# --- orders ---------------------------------------------------------------------------------


def shared_view(order: Order) -> SharedView | None:
    """The view that it gives, if it gives one."""
    return _last_view.shared(order.view) if isinstance(order, GiveView) else None


def order_message(order: Order, *, with_view: bool = True) -> pb.Order:
    """`with_view` False: without the view that it gives, which is put in later."""
    message = pb.Order(node=order.node, job=order.job, worker=order.worker)
    match order:
        case StartWorker():
            message.start.CopyFrom(_start_message(order))
        case GiveView():
            if with_view:
                message.view.CopyFrom(_last_view.shared(order.view).message)
        case GiveSettings():
            message.settings.CopyFrom(
                pb.Settings(
                    settings=[
                        pb.Setting(name=name, value=value, at_step=at_step)
                        for name, value, at_step in order.settings
                    ]
                )
            )
        case TakeShare():
            attempt = _attempt_message(order.attempt)
            message.share.CopyFrom(
                pb.Share(attempt=attempt, share=order.share, shares=order.shares)
            )
        case StopWorker():
            message.stop.CopyFrom(pb.Stop(notice_s=order.notice_s))
        case Forget():
            message.forget.SetInParent()
    return message


def _start_message(order: StartWorker) -> pb.Start:
    return pb.Start(
        bundle=order.bundle,
        command=order.command,
        resources=resources_message(order.resources),
        environment=dict(order.environment),
        silence_s=order.silence_s,
        secret=order.secret,
        queue=order.queue,
        user=order.user,
        ports=dict(order.ports),
        ready=_probe_message(order.ready),
        live=_probe_message(order.live),
        references=dict(order.references),
        secrets=dict(order.secrets),
        requirements=order.requirements,
    )


def _probe_message(probe: Probe | None) -> pb.Probe | None:
    if probe is None:
        return None
    return pb.Probe(
        kind=probe.kind.value,
        port=probe.port,
        path=probe.path,
        command=probe.command,
        every_s=probe.every_s,
        timeout_s=probe.timeout_s,
        failures=probe.failures,
        within_s=probe.within_s,
    )


def _probe_from(message: pb.Probe) -> Probe:
    if message.kind not in {kind.value for kind in ProbeKind}:
        raise malformed(f"a probe of kind {message.kind!r:.50}")
    # Written so that a NaN fails too.
    if not (message.every_s > 0 and message.timeout_s > 0 and message.failures > 0):
        raise malformed(f"a probe every {message.every_s} s, {message.failures} failures")
    return Probe(
        ProbeKind(message.kind),
        message.port,
        message.path,
        tuple(message.command),
        message.every_s,
        message.timeout_s,
        message.failures,
        message.within_s if message.HasField("within_s") else None,
    )


def order_from(message: pb.Order, before: Order | None = None) -> Order:
    """`before`: the order before it in the same message, whose view it may share."""
    node, job, worker = message.node, message.job, message.worker
    if not node or not job:
        raise malformed(f"an order without a node or a job: {node!r}, {job!r}")
    if message.WhichOneof("what") == "same_view":
        if not isinstance(before, GiveView) or before.job != job:
            raise malformed(f"the same view for worker {worker} of {job}, and none before it")
        return GiveView(node, job, worker, before.view)
    make = _ORDERS.get(message.WhichOneof("what") or "")
    if make is None:
        raise malformed(f"an order of an unknown kind, for worker {worker} of {job}")
    return make(message, node, job, worker)


def _start_from(message: pb.Order, node: str, job: str, worker: int) -> StartWorker:
    start = message.start
    return StartWorker(
        node,
        job,
        worker,
        bundle=start.bundle,
        command=tuple(start.command),
        resources=resources_from(start.resources),
        environment=dict(start.environment),
        silence_s=start.silence_s if start.HasField("silence_s") else None,
        secret=start.secret,
        queue=start.queue,
        user=start.user,
        ports=dict(start.ports),
        ready=_probe_from(start.ready) if start.HasField("ready") else None,
        live=_probe_from(start.live) if start.HasField("live") else None,
        references=dict(start.references),
        secrets=dict(start.secrets),
        requirements=tuple(start.requirements),
    )


def _settings_from(message: pb.Order, node: str, job: str, worker: int) -> GiveSettings:
    settings = tuple((each.name, each.value, each.at_step) for each in message.settings.settings)
    return GiveSettings(node, job, worker, settings)


def _share_from(message: pb.Order, node: str, job: str, worker: int) -> TakeShare:
    share = message.share
    if not 0 <= share.share < share.shares:
        raise malformed(f"share {share.share} of {share.shares}")
    attempt = _attempt_from(share.attempt)
    return TakeShare(node, job, worker, attempt, share.share, share.shares)


_ORDERS: Final[Mapping[str, Callable[[pb.Order, str, str, int], Order]]] = {
    "start": _start_from,
    "view": lambda m, node, job, worker: GiveView(node, job, worker, _view_from(m.view)),
    "settings": _settings_from,
    "share": _share_from,
    "stop": lambda m, node, job, worker: StopWorker(node, job, worker, m.stop.notice_s),
    "forget": lambda m, node, job, worker: Forget(node, job, worker),
}


# --- reports --------------------------------------------------------------------------------


def facts_message(facts: NodeFacts, bytes_max: int = RPC_MESSAGE_BYTES_MAX) -> pb.NodeFacts:
    """The snapshot as a message of at most so many bytes: details for people are cut first."""
    message = _facts_message(facts)
    if message.ByteSize() <= bytes_max:
        return message
    message = _facts_message(replace(facts, workers=tuple(map(_shortened, facts.workers))))
    if message.ByteSize() > bytes_max:
        raise BugError(
            f"the snapshot of {facts.node} has {message.ByteSize()} bytes",
            why=f"it has {len(facts.workers)} workers; at most {bytes_max} bytes can be sent",
            fix="let fewer workers run on this machine, or write fewer parts in each share",
        )
    return message


def _shortened(facts: WorkerFacts) -> WorkerFacts:
    if facts.exit is None:
        return facts
    return replace(
        facts, exit=replace(facts.exit, detail=facts.exit.detail[:EXIT_DETAIL_SHORT_CHARACTERS])
    )


def _facts_message(facts: NodeFacts) -> pb.NodeFacts:
    return pb.NodeFacts(
        node=facts.node,
        capacity=resources_message(facts.capacity),
        workers=[_worker_message(worker) for worker in facts.workers],
    )


def _worker_message(facts: WorkerFacts) -> pb.WorkerFacts:
    ended = facts.exit
    return pb.WorkerFacts(
        job=facts.job,
        worker=facts.worker,
        phase=_PHASES[facts.phase],
        view=facts.view,
        step=facts.step,
        parts=[
            pb.Parts(
                attempt=attempt,
                parts=[
                    pb.Part(key=part.key, size_bytes=part.size_bytes, digest=part.digest)
                    for part in parts
                ],
            )
            for attempt, parts in facts.parts.items()
        ],
        missed=sorted(facts.missed),
        unreadable=sorted(facts.unreadable),
        unreadable_why=text(facts.unreadable_why),
        settings=facts.settings,
        exit=None if ended is None else _exit_message(ended),
        address=facts.address,
        ending=facts.ending,
        suspects=sorted(facts.suspects),
        metrics=dict(facts.metrics),
        endpoints=dict(facts.endpoints),
        trouble=text(facts.trouble),
        preparing=text(facts.preparing),
        preparing_since_s=facts.preparing_since_s,
    )


def _exit_message(ended: Exit) -> pb.Exit:
    return pb.Exit(kind=_EXITS[ended.kind], detail=text(ended.detail))


def facts_from(message: pb.NodeFacts) -> NodeFacts:
    if not message.node:
        raise malformed("a snapshot of a node without a name")
    workers = _unique(
        "worker", (((each.job, each.worker), _worker_from(each)) for each in message.workers)
    )
    return NodeFacts(message.node, resources_from(message.capacity), tuple(workers.values()))


def _worker_from(message: pb.WorkerFacts) -> WorkerFacts:
    phase = _PHASES_BACK.get(message.phase)
    if phase is None or not message.job:
        raise malformed(f"worker {message.worker} of {message.job!r} in phase {message.phase}")
    return WorkerFacts(
        message.job,
        message.worker,
        phase,
        view=message.view,
        step=message.step if message.HasField("step") else None,
        parts=_unique("attempt", ((each.attempt, _parts_from(each)) for each in message.parts)),
        missed=frozenset(message.missed),
        unreadable=frozenset(message.unreadable),
        unreadable_why=message.unreadable_why,
        settings=message.settings,
        exit=_exit_from(message.exit) if message.HasField("exit") else None,
        address=message.address,
        ending=message.ending,
        suspects=frozenset(message.suspects),
        metrics=dict(message.metrics),
        endpoints=dict(message.endpoints),
        trouble=message.trouble,
        preparing=message.preparing,
        preparing_since_s=message.preparing_since_s,
    )


def _parts_from(message: pb.Parts) -> tuple[Part, ...]:
    return tuple(Part(each.key, each.size_bytes, each.digest) for each in message.parts)


def _exit_from(message: pb.Exit) -> Exit:
    kind = _EXITS_BACK.get(message.kind)
    if kind is None:
        raise malformed(f"an end of kind {message.kind}")
    return Exit(kind, message.detail)


def _unique(what: str, pairs: Iterable[tuple[K, V]]) -> dict[K, V]:
    found: dict[K, V] = {}
    for key, value in pairs:
        if key in found:
            raise malformed(f"{what} {key} is there twice")
        found[key] = value
    return found
