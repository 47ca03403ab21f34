"""How everyone's partial sums of a step become the one sum, between the members of a meeting.

Each member owns a chunk of every bucket, which it combines in tree order. What bytes travel over is
chosen at the first step of a meeting, by where the members are (`exchange_plan`): memory that they
share (`over_memory`), that of groups with something else between these (`over_levels`), or the
mesh's connections (`over_tcp`). The stages of a step run in a thread of their own while the
backward pass still works on the buckets to come.

What takes long to make (NCCL) is made in the background: steps go over the mesh's connections until
all members have said, with a step, that it is there.

The partial sums themselves are only read. When the mesh breaks in the middle they are as valid as
before.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import torch

from holdfast.system import logs
from holdfast.system.tasks import WAITED, start_thread
from holdfast.train.members.conversation import STEP, Conversation
from holdfast.train.members.mesh import Mesh
from holdfast.train.sums import exchange_plan, nccl, tree
from holdfast.train.sums.compression import Code
from holdfast.train.sums.exchange_plan import ExchangePlan, MemberPlace, Way, WayChoice
from holdfast.train.sums.gradients import Flat, GradientSums, Layout
from holdfast.train.sums.over_levels import Carrier, MeshCarrier, OverLevels
from holdfast.train.sums.over_memory import OverMemory, lease_number, opened_leases
from holdfast.train.sums.over_tcp import OverTcp
from holdfast.train.sums.shared_memory import MemoryLease, PeerLease, PeerMemory, Unshared, machine
from holdfast.train.sums.transport import Transport, say
from holdfast.wire.errors import BugError

# While the thread waits for the loop it looks so often at what is under way.
UNDER_WAY_LOOK_S: Final = 0.05

log = logs.get(__name__)


class Exchange(Protocol):
    """What the loop needs of a way to combine. One thread calls it; `ready` may come from another.

    `begin` a step; `ready(bucket)` when the partial sums of a bucket are final, in any order;
    `finish` waits until `total` holds the sum over all lanes, here and (soon) everywhere, and gives
    what each member said. Both raise `PeerLost`, after which the exchange is of no use any more.
    """

    total: Flat

    def begin(self, step: int, sums: GradientSums, notes: bytes) -> None: ...

    def ready(self, bucket: int) -> None: ...

    def finish(self, words: bytes) -> dict[int, bytes]: ...

    def close(self) -> None: ...


class NoExchange:
    """Nobody else: the sum is the root, and it is here."""

    def __init__(self, lanes: int) -> None:
        self.total: Flat = []
        self._root = tree.root(lanes)
        self._sums: GradientSums | None = None

    def begin(self, step: int, sums: GradientSums, notes: bytes) -> None:
        self._sums = sums

    def ready(self, bucket: int) -> None:
        """Nothing to do early."""

    def finish(self, words: bytes) -> dict[int, bytes]:
        assert self._sums is not None
        self.total = self._sums.partials[self._root]
        return {}

    def close(self) -> None:
        """Nothing is open."""


class MeshExchange:
    """Between the members of one meeting.

    `totals(way)`: where the sum is to be, by the way that it takes. `memory`: what can be shared
    with members on the same machine; None: nothing.
    """

    def __init__(
        self,
        mesh: Mesh,
        talk: Conversation,
        held: Mapping[int, Sequence[int]],
        lanes: int,
        layout: Layout,
        totals: Callable[[Way], Flat],
        code: Code | None = None,
        memory: PeerMemory | None = None,
    ) -> None:
        self.total: Flat = []
        self.choice: WayChoice | None = None
        self._mesh, self._talk, self._layout, self._code = mesh, talk, layout, code
        self._totals, self._memory = totals, memory
        self._plan = exchange_plan.plan(held, lanes)
        self._transport: Transport | None = None
        self._better: Better | None = None  # a way that is being made
        # On a device a bucket is final when what was launched until then is done.
        self._events: list[torch.cuda.Event] = []
        for _ in layout.sizes if layout.device.type == "cuda" else ():
            self._events.append(torch.cuda.Event())
        self._sums: GradientSums | None = None
        self._changed = threading.Condition()
        self._job: tuple[int, bytes] | None = None
        self._ready: set[int] = set()
        self._words: bytes | None = None
        self._received: dict[int, bytes] | None = None
        self._failed: BaseException | None = None
        self._closed = False
        self._thread = start_thread(self._serve, "holdfast-exchange", WAITED)  # by `finish`

    # --- what the loop calls -------------------------------------------------------------------

    def begin(self, step: int, sums: GradientSums, notes: bytes) -> None:
        with self._changed:
            self._sums, self._words, self._received = sums, None, None
            self._ready.clear()
            self._job = (step, notes)
            self._changed.notify_all()

    def ready(self, bucket: int) -> None:
        self._mark([bucket])

    def finish(self, words: bytes) -> dict[int, bytes]:
        self._mark(sorted(set(range(len(self._layout.sizes))) - self._ready))
        with self._changed:
            self._words = words
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._received is not None or self._failed is not None)
            if self._failed is not None:
                raise self._failed
            assert self._received is not None
            return self._received

    def close(self) -> None:
        """End the thread. Close the mesh first: that wakes it wherever it waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        if self._failed is not None:
            self._failed.with_traceback(None)  # its frames hold what peers have shared
        if self._better is not None:
            self._better.close()
        if self._transport is not None:
            self._transport.close()

    def _mark(self, buckets: Sequence[int]) -> None:
        for bucket in buckets if self._events else ():
            self._events[bucket].record(torch.cuda.current_stream(self._layout.device))
        with self._changed:
            self._ready.update(buckets)
            self._changed.notify_all()

    # --- the thread ----------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while (job := self._next_job()) is not None:
                received = self._step(*job)
                with self._changed:
                    self._received = received
                    self._changed.notify_all()
        except BaseException as error:  # whatever it is, the loop has to hear of it
            with self._changed:
                self._failed = error
                self._changed.notify_all()

    def _next_job(self) -> tuple[int, bytes] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._job is not None or self._closed)
            job, self._job = self._job, None
            return None if self._closed else job

    def _step(self, step: int, notes: bytes) -> dict[int, bytes]:
        if not self._talk.level:
            self._talk.lead((step, STEP), notes)
        if self._transport is None:
            self._choose()
        elif self._better is not None and self._better.agreed:
            self._transport.close()
            self._take(self._better.transport())
            self._better = None
            why = f"it is there, from step {step + 1} on"
            log.info("exchange", worker=self._mesh.worker, over=Way.NCCL.value, why=why)
        transport = self._transport
        assert transport is not None
        assert self._sums is not None
        for number, buckets in enumerate(transport.stages):
            self._await(buckets)
            transport.stage(number, self._sums)
        self._wait_for(lambda: self._words is not None)
        words = self._words
        assert words is not None
        if self._better is None or self._better.abandoned:
            return transport.end(words)
        mine = self._better.state()
        received = transport.end(mine + words)
        self._improve({mine, *(each[:1] for each in received.values())})
        return {peer: each[1:] for peer, each in received.items()}

    def _await(self, buckets: Sequence[int]) -> None:
        self._wait_for(lambda: self._ready.issuperset(buckets))
        for bucket in buckets if self._events else ():
            self._events[bucket].synchronize()

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        """Of the loop; it may wait for a device, and that for a peer who is gone."""
        transport = self._transport
        assert transport is not None
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: condition() or self._closed, UNDER_WAY_LOOK_S):
                    if not condition():
                        raise BugError("an exchange was closed in the middle of a step")
                    return
            transport.look()

    # --- the way -------------------------------------------------------------------------------

    def _choose(self) -> None:
        """All say where they are, and those of one machine try to open what the others share: all
        do it, or nobody takes this way."""
        place, lease = self._place(), None
        if not place.refuses:
            try:
                lease = MemoryLease()
            except Unshared as error:
                place = place._replace(refuses=f"{error}: {error.why}")
        sent = {"place": place.body(), "lease": lease.holder if lease is not None else None}
        received = self._say(sent)
        places = {peer: MemberPlace.of(each["place"]) for peer, each in received.items()}
        places[self._mesh.worker] = place
        choice, leases = exchange_plan.may_share(places), dict[int, PeerLease]()
        hoped, groups = choice.way, exchange_plan.groups_of(places)
        if hoped is not Way.TCP:
            assert lease is not None
            mine = next(group for group in groups if self._mesh.worker in group)
            near, failure = [peer for peer in mine if peer != self._mesh.worker], ""
            try:
                leases = opened_leases({peer: received[peer]["lease"] for peer in near})
            except Unshared as error:
                failure = f"{error}: {error.why}"
            lease.grant(lease_number(self._mesh))
            answers = self._say({"failure": failure}).items()
            failures = {peer: str(each["failure"]) for peer, each in answers}
            choice = exchange_plan.choose(places, {**failures, self._mesh.worker: failure})
        self.choice = choice
        surprising = hoped is not Way.TCP or bool(self._memory and not self._code and place.refuses)
        say_it = log.warning if choice.way is Way.TCP and surprising else log.info
        say_it("exchange", worker=self._mesh.worker, over=choice.way.value, why=choice.why)
        if choice.way is Way.TCP or self._memory is None or lease is None:
            self._take(OverTcp(*self._parts(Way.TCP), self._code))
            return
        shared = self._memory, lease, leases
        if choice.way is Way.SHARED:
            self._take(OverMemory(*self._parts(choice.way), *shared))
            return
        levels = exchange_plan.levels(self._plan, groups, one_carrier=choice.way is Way.NCCL)
        if choice.way is Way.LEVELS:
            over = OverLevels(*self._parts(choice.way), *shared, levels, MeshCarrier(self._mesh))
            self._take(over)
            return
        self._take(OverTcp(*self._parts(Way.TCP), self._code))
        carrier = self._nccl(levels.owners)
        self._better = Better(
            carrier, lambda made: OverLevels(*self._parts(Way.NCCL), *shared, levels, made)
        )

    def _parts(self, way: Way) -> tuple[Mesh, ExchangePlan, Layout, Flat]:
        total = self._totals(way)
        if self._events:
            torch.cuda.current_stream(self._layout.device).synchronize()  # its zeros are there
        return self._mesh, self._plan, self._layout, total

    def _take(self, transport: Transport) -> None:
        self._transport, self.total = transport, transport.total

    def _nccl(self, owners: Sequence[int]) -> Callable[[Better], Carrier]:
        """What makes a communicator of these members."""
        mesh, me, device = self._mesh, self._mesh.worker, self._layout.device
        library = nccl.Library()
        mine = library.new_id().hex() if me == owners[0] else ""
        shared = {me: {"nccl": mine}, **self._say({"nccl": mine})}
        identity = bytes.fromhex(shared[owners[0]]["nccl"])

        def make(better: Better) -> Carrier:
            def check() -> None:
                if mesh.broken is not None:
                    raise mesh.broken
                if better.abandoned:
                    raise Unshared("another member has none")

            made = None
            if me in owners:
                where = owners.index(me), len(owners), device, check
                made = nccl.Communicator(library, identity, *where)
            return nccl.NcclCarrier(mesh, owners, made, device)

        return make

    def _improve(self, states: set[bytes]) -> None:
        """All have said whether the better way is there: all conclude the same. It is taken with
        the next step: the sum of this one is where it is."""
        assert self._better is not None
        self._better.agreed = states == {Better.READY}
        if Better.FAILED in states:
            log.warning(
                "exchange",
                worker=self._mesh.worker,
                over=Way.TCP.value,
                why=f"NCCL did not come about: {self._better.failure or 'at another worker'}",
            )
            self.choice = WayChoice(Way.TCP, "NCCL did not come about")
            self._better.abandoned = True  # it is closed with the exchange: that may wait

    def _place(self) -> MemberPlace:
        if self._code is not None and not self._code.exact:
            return MemberPlace(machine(), "", "gradients are compressed")
        if self._memory is None:
            return MemberPlace(machine(), "", "it was told so")
        return self._memory.place()

    def _say(self, mine: Mapping[str, Any]) -> dict[int, Any]:
        received = say(self._mesh, self._mesh.peers, json.dumps(mine).encode())
        return {peer: json.loads(raw) for peer, raw in received.items()}


class Better:
    """A transport whose carrier is made in the background."""

    MAKING, READY, FAILED = b"m", b"r", b"f"

    def __init__(
        self, make: Callable[[Better], Carrier], over: Callable[[Carrier], Transport]
    ) -> None:
        self.failure = ""
        self.agreed = self.abandoned = False  # by all members, as they have said in a step
        self._make, self._over = make, over
        self._made: Carrier | None = None
        self._thread = start_thread(self._run, "holdfast-carrier", WAITED)  # by `close`

    def state(self) -> bytes:
        if self._thread.is_alive():
            return self.MAKING
        return self.FAILED if self._made is None else self.READY

    def transport(self) -> Transport:
        assert self._made is not None, "it is ready"
        return self._over(self._made)

    def close(self) -> None:
        """It is of no use. What makes it ends with the mesh."""
        self._thread.join()
        if self._made is not None:
            self._made.close()

    def _run(self) -> None:
        try:
            self._made = self._make(self)
        except Exception as error:  # the other way is there: the sums go on over it
            self.failure = f"{type(error).__name__}: {error}"
