"""How everyone's pieces of a step become the one sum, between the members of a meeting.

Each member owns a chunk of every bucket, which it combines in tree order. What bytes travel over is
chosen at the first step of a meeting, by where the members are (`exchange_plan`): memory that they
share (`over_memory`), or the mesh's connections (`over_tcp`). The stages of a step run in a thread
of their own while the backward pass still works on the buckets to come.

The pieces themselves are only read. When the mesh breaks in the middle they are as valid as before.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from holdfast.train.members.conversation import STEP, Conversation
from holdfast.train.members.mesh import Mesh
from holdfast.train.sums import exchange_plan, tree
from holdfast.train.sums.compression import Code
from holdfast.train.sums.exchange_plan import Choice, Place, Way
from holdfast.train.sums.gradients import Flat, Layout, Sums
from holdfast.train.sums.over_memory import OverMemory, lease_number, opened_leases
from holdfast.train.sums.over_tcp import OverTcp
from holdfast.train.sums.shared_memory import Lease, Memory, Unshared, machine
from holdfast.train.sums.transport import Transport, say
from holdfast.wire import logs
from holdfast.wire.errors import BugError
from holdfast.wire.tasks import WAITED, start_thread

log = logs.get(__name__)


class Exchange(Protocol):
    """What the loop needs of a way to combine. One thread calls it; `ready` may come from another.

    `begin` a step; `ready(bucket)` when the pieces of a bucket are final, in any order; `finish`
    waits until `total` holds the sum over all lanes, here and (soon) everywhere, and gives what
    each member said. Both raise `PeerLost`, after which the exchange is of no use any more.
    """

    total: Flat

    def begin(self, step: int, sums: Sums, notes: bytes) -> None: ...

    def ready(self, bucket: int) -> None: ...

    def finish(self, words: bytes) -> dict[int, bytes]: ...

    def close(self) -> None: ...


class Alone:
    """Nobody else: the sum is the root, and it is here."""

    def __init__(self, lanes: int) -> None:
        self.total: Flat = []
        self._root = tree.root(lanes)
        self._sums: Sums | None = None

    def begin(self, step: int, sums: Sums, notes: bytes) -> None:
        self._sums = sums

    def ready(self, bucket: int) -> None:
        """Nothing to do early."""

    def finish(self, words: bytes) -> dict[int, bytes]:
        assert self._sums is not None
        self.total = self._sums.pieces[self._root]
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
        memory: Memory | None = None,
    ) -> None:
        self.total: Flat = []
        self.choice: Choice | None = None
        self._mesh, self._talk, self._layout, self._code = mesh, talk, layout, code
        self._totals, self._memory = totals, memory
        self._plan = exchange_plan.plan(held, lanes)
        self._transport: Transport | None = None
        # On a device a bucket is final when what was launched until then is done.
        self._events: list[torch.cuda.Event] = []
        for _ in layout.sizes if layout.device.type == "cuda" else ():
            self._events.append(torch.cuda.Event())  # type: ignore[no-untyped-call]
        self._sums: Sums | None = None
        self._changed = threading.Condition()
        self._job: tuple[int, bytes] | None = None
        self._ready: set[int] = set()
        self._words: bytes | None = None
        self._heard: dict[int, bytes] | None = None
        self._failed: BaseException | None = None
        self._closed = False
        self._thread = start_thread(self._serve, "holdfast-exchange", WAITED)  # by `finish`

    # --- what the loop calls -------------------------------------------------------------------

    def begin(self, step: int, sums: Sums, notes: bytes) -> None:
        with self._changed:
            self._sums, self._words, self._heard = sums, None, None
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
            self._changed.wait_for(lambda: self._heard is not None or self._failed is not None)
            if self._failed is not None:
                raise self._failed
            assert self._heard is not None
            return self._heard

    def close(self) -> None:
        """End the thread. Close the mesh first: that wakes it wherever it waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        if self._failed is not None:
            self._failed.with_traceback(None)  # its frames hold what peers have shared
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
                heard = self._step(*job)
                with self._changed:
                    self._heard = heard
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
            self._transport = self._chosen()
            self.total = self._transport.total
        assert self._sums is not None
        for number, buckets in enumerate(self._transport.stages):
            self._await(buckets)
            self._transport.stage(number, self._sums)
        with self._changed:
            self._changed.wait_for(lambda: self._words is not None or self._closed)
            words = self._words
        if words is None:
            raise BugError("an exchange was closed in the middle of a step")
        return self._transport.end(words)

    def _await(self, buckets: Sequence[int]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._ready.issuperset(buckets) or self._closed)
            if self._closed:
                raise BugError("an exchange was closed in the middle of a step")
        for bucket in buckets if self._events else ():
            self._events[bucket].synchronize()

    # --- the way -------------------------------------------------------------------------------

    def _chosen(self) -> Transport:
        """All say where they are, and those of one machine try to open what the others share: all
        do it, or nobody takes this way."""
        peers, place, lease = self._mesh.peers, self._place(), None
        if not place.refuses:
            try:
                lease = Lease()
            except Unshared as error:
                place = place._replace(refuses=f"{error}: {error.why}")
        said = {"place": place.body(), "lease": lease.holder if lease is not None else None}
        heard = self._say(said)
        places = {peer: Place.of(each["place"]) for peer, each in heard.items()}
        places[self._mesh.worker] = place
        choice, leases = exchange_plan.may_share(places), {}
        hoped = choice.way
        if choice.way is Way.SHARED:
            assert lease is not None
            failure = ""
            try:
                leases = opened_leases({peer: heard[peer]["lease"] for peer in peers})
            except Unshared as error:
                failure = f"{error}: {error.why}"
            lease.grant(lease_number(self._mesh))
            answers = self._say({"failure": failure}).items()
            failures = {peer: str(each["failure"]) for peer, each in answers}
            choice = exchange_plan.choose(places, {**failures, self._mesh.worker: failure})
        self.choice = choice
        surprising = hoped is Way.SHARED or bool(self._memory and not self._code and place.refuses)
        say_it = log.warning if choice.way is Way.TCP and surprising else log.info
        say_it("exchange", worker=self._mesh.worker, over=choice.way.value, why=choice.why)
        plan, layout, total = self._plan, self._layout, self._totals(choice.way)
        if self._events:
            torch.cuda.current_stream(layout.device).synchronize()  # its zeros are there
        if choice.way is Way.TCP or self._memory is None or lease is None:
            return OverTcp(self._mesh, plan, layout, total, self._code)
        return OverMemory(self._mesh, plan, layout, total, self._memory, lease, leases)

    def _place(self) -> Place:
        if self._code is not None and not self._code.exact:
            return Place(machine(), "", "gradients are compressed")
        if self._memory is None:
            return Place(machine(), "", "it was told so")
        return self._memory.place()

    def _say(self, mine: Mapping[str, Any]) -> dict[int, Any]:
        heard = say(self._mesh, self._mesh.peers, json.dumps(mine).encode())
        return {peer: json.loads(said) for peer, said in heard.items()}
