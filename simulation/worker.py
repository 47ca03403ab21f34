"""A worker: a process that follows the view protocol, with a cheap stand-in for the arithmetic.

A view begins with a meeting: each member tells all others which state it holds. When it has heard
from everyone, the most advanced state is everybody's; if nobody has one, the view's `restore_step`
says which committed checkpoint to begin from. Then, step by step, each member sends the sums of
its lanes to the others, and has completed the step when it has everyone's. What was computed for a
step stays valid when the view changes. Every message carries its view; another view's is ignored.

What is decided in it is decided by the real functions: whose state counts (`conclude`), when a
setting takes effect (`extended`, `in_effect`), how lanes are summed (`tree`). Messages between
members, and the state itself, are simulated.

The end: whoever has made the last step says so, and waits until it is asked to leave. A peer that
is silent for too long is suspected.

A replica has none of this: it says that it is ready, and stays until it is asked to leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.agent.events import Ending, Force, Key
from holdfast.train.members.effective import Record, extended
from holdfast.train.members.greeting import Epoch, Hello
from holdfast.train.members.meeting import conclude
from holdfast.wire.orders import GiveSettings, GiveView, StopWorker, TakeShare, View
from holdfast.wire.reports import Part
from simulation.arithmetic import Sums, contribution, following, setting_of, summed
from simulation.blobs import Share
from simulation.kernel import SimulatedProcess
from simulation.settings import Training

if TYPE_CHECKING:
    from simulation.host import Host
    from simulation.world import World

START_S: Final = (0.1, 1.0)
LANE_S: Final = (0.02, 0.1)
PUT_S: Final = (0.005, 0.2)
LEAVE_S: Final = (0.01, 0.2)
# How long a worker waits for its peers before it asks them again.
ASK_AGAIN_S: Final = 0.4
# So often it asks in vain before it suspects them.
ASKS_MAX: Final = 3


class HeldState(NamedTuple):
    """A state: the last completed step, the number that stands for the weights, and from which
    step on each setting is in effect."""

    step: int
    value: int
    record: Record = ()


class Brought(NamedTuple):
    """What a member brings to a meeting: its hello, and the state that it could give."""

    hello: Hello
    held: HeldState | None


class Worker(SimulatedProcess):
    """The process of one worker. Its agent hears what it says; its host sees it end."""

    def __init__(self, world: World, host: Host, key: Key, training: Training) -> None:
        super().__init__(world.kernel, f"{key.job}.{key.worker}")
        self.world = world
        self.host = host
        self.key = key
        self.training = training
        self.ready = False
        self.ending = False  # it has made the last step
        self.suspects: frozenset[int] = frozenset()
        self.settings: tuple[tuple[str, str, int], ...] = ()
        self.held: HeldState | None = None
        self.view: View | None = None
        self.together = False  # everyone of the view has met
        self.deaf = world.faults.random.random() < 0.1  # it does not listen to SIGTERM
        self.said_parts: dict[int, tuple[Part, ...]] = {}
        self.missed: set[int] = set()
        self.unreadable: set[int] = set()
        self._brought: HeldState | None = None  # what it brought to the meeting of its view
        self._meeting: dict[tuple[int, int], Brought] = {}
        self._own: dict[int, int] = {}  # what lanes contribute to the step that is under way
        self._sums: dict[tuple[int, int], dict[int, Sums]] = {}
        self._shares: dict[int, TakeShare] = {}
        self._marked: object = None
        self._asked = 0  # how often in vain
        self.begin()
        self.after(self.kernel.between(*START_S), self._introduce)

    # --- its life -------------------------------------------------------------------------------

    def _introduce(self) -> None:
        self.ready = True
        self._say()
        if self.training.spec.serves:
            self._serve()
        else:
            self.after(ASK_AGAIN_S, self._ask_again)

    def _serve(self) -> None:
        """Answer, until somebody ends it or its own code fails."""
        faults = self.world.faults
        if faults.strikes("user error") or faults.strikes_birth("replica error"):
            self.end(Ending(code=1, stderr_tail=f"ValueError: the model's own {self.name}"))
        else:
            self.after(ASK_AGAIN_S, self._serve)

    def end(self, ending: Ending) -> None:
        """The process is gone, and its parent has seen how."""
        self.tell("ends", ending)
        self.die()
        self.host.reap(self, ending)

    def signal(self, force: Force) -> None:
        """A signal from its agent; a process that is stopped gets only the second kind."""
        if force is Force.KILL:
            self.end(Ending(signal=9))
        elif not self.deaf:
            self.arrive(lambda: self.after(self.kernel.between(*LEAVE_S), self._leave))

    def receive(self, what: GiveView | GiveSettings | TakeShare | StopWorker) -> None:
        """Something from its agent."""
        if isinstance(what, GiveView):
            self._receive_view(what.view)
        elif isinstance(what, TakeShare):
            number = what.attempt.number
            if number not in self._shares:
                self._shares[number] = what
                self._take_shares()
        elif isinstance(what, GiveSettings) and len(what.settings) > len(self.settings):
            self.settings = what.settings
            self._meet()

    def _leave(self) -> None:
        self._say()
        self.end(Ending(code=0, word="done" if self.ending else "left"))

    def _say(self) -> None:
        self.host.report_soon(self)

    def cannot_read(self, step: int) -> None:
        """The checkpoint that its view begins from cannot be read; another view comes."""
        if step not in self.unreadable:
            self.tell("cannot read step", step)
            self.unreadable.add(step)
            self._say()

    # --- views ----------------------------------------------------------------------------------

    def _receive_view(self, view: View) -> None:
        if self.view is not None and view.number <= self.view.number:
            return
        if self.key.worker not in view.lanes:
            self.tell("is not in view", view.number)
            self._leave()
            return
        self.tell("adopts view", view.number, "at", self.held)
        self.view = view
        self.together = False
        self.ending = False
        self.suspects = frozenset()
        self._asked = 0
        self._brought = self.held
        self._meeting = {met: held for met, held in self._meeting.items() if met[0] >= view.number}
        self._sums = {of: sums for of, sums in self._sums.items() if of[0] >= view.number}
        self._say()
        for peer in self._peers():
            self._greet(peer, asks=False)
        self._meet()

    def _peers(self) -> list[int]:
        assert self.view is not None
        return [worker for worker in self.view.lanes if worker != self.key.worker]

    def _greet(self, peer: int, asks: bool) -> None:
        me, brought = self.key.worker, self._brings()
        self._send(peer, lambda worker: worker.receive_greeting(me, brought, asks))

    def _brings(self) -> Brought:
        assert self.view is not None
        held = self._brought
        step, record = (None, ()) if held is None else (held.step, held.record)
        epoch = Epoch(self.view.number, 0)
        return Brought(Hello("meet", self.key.job, self.key.worker, -1, epoch, step, record), held)

    def receive_greeting(self, peer: int, brought: Brought, asks: bool) -> None:
        """A member of a view says what it brought to the meeting."""
        mine, number = self.view.number if self.view else 0, brought.hello.epoch.view
        if number < mine:
            return
        self._meeting[number, peer] = brought
        if number == mine:
            if asks:
                self._greet(peer, asks=False)
            self._meet()

    def _meet(self) -> None:
        """If all are there: take the most advanced state, or restore, and begin."""
        view = self.view
        if view is None or self.together or not self._knows_settings(view):
            return
        brought = {self.key.worker: self._brings()}
        for peer in self._peers():
            if (view.number, peer) not in self._meeting:
                return
            brought[peer] = self._meeting[view.number, peer]
        chosen = self._chosen(view, brought)
        if chosen is None:
            return
        chosen = self._with_settings(view, chosen)
        if not self._still_counts(chosen):
            self._own = {}
        if chosen != self.held:
            self._hold(chosen)
        self.world.checks.met(self, view)
        self.together = True
        self._say()
        self._take_shares()
        self._begin_step()

    def _chosen(self, view: View, brought: Mapping[int, Brought]) -> HeldState | None:
        """What this member goes on from; None: it cannot."""
        found = conclude({worker: one.hello for worker, one in brought.items()})
        if found.source is None:
            return self.world.restored(self, view)
        given = brought[found.source].held
        assert given is not None
        if self.held is None or self.key.worker in found.takers:
            return given
        # The source's settings, also for those who hold the same state.
        return self.held._replace(record=given.record)

    def _still_counts(self, chosen: HeldState) -> bool:
        """Whether what was computed for the step under way may be used in it: it is of the same
        step, and under the same settings."""
        if self.held is None or chosen.step != self.held.step:
            return False
        return setting_of(chosen.record, chosen.step + 1) == self._setting()

    def _knows_settings(self, view: View) -> bool:
        return len(self.settings) >= view.settings

    def _with_settings(self, view: View, held: HeldState) -> HeldState:
        """The state with those settings of the view that it does not know yet."""
        record = extended(held.record, self.settings, view.settings, held.step)
        return held._replace(record=record)

    def _setting(self) -> int:
        """Which settings count for the step that is under way."""
        return setting_of(self.held.record, self.held.step + 1) if self.held else 0

    # --- steps ----------------------------------------------------------------------------------

    def _hold(self, held: HeldState) -> None:
        self.world.checks.held(self, self.held, held)
        self.held = held

    def _begin_step(self) -> None:
        assert self.view is not None and self.held is not None
        if self.held.step >= self.training.steps:
            self.ending = True
            self._say()
            return
        if self.world.faults.strikes("user error"):
            self.end(Ending(code=1, stderr_tail=f"ValueError: the user's own {self.name}"))
            return
        missing = [lane for lane in self.view.lanes[self.key.worker] if lane not in self._own]
        view, held = self.view, self.held
        delay_s = 0.001 + self.kernel.between(*LANE_S) * len(missing)
        self.after(delay_s, lambda: self._computed(view, held, missing))

    def _computed(self, view: View, held: HeldState, lanes: list[int]) -> None:
        if held != self.held:
            return
        step, setting = held.step + 1, self._setting()
        for lane in lanes:
            self._own[lane] = contribution(held.value, step, lane, setting)
        if view is not self.view:
            return
        mine = summed(self._own, view.lanes[self.key.worker], self.training.spec.lanes)
        self._sums.setdefault((view.number, step), {})[self.key.worker] = mine
        for peer in self._peers():
            self._send_sums(peer, step)
        self._complete()

    def _send_sums(self, peer: int, step: int) -> None:
        assert self.view is not None
        number, me = self.view.number, self.key.worker
        mine = self._sums.get((number, step), {}).get(me)
        if mine is not None:
            self._send(peer, lambda worker: worker.receive_sums(me, number, step, mine))

    def receive_sums(self, peer: int, number: int, step: int, sums: Sums) -> None:
        """The lane sums of a member of view `number` for `step`."""
        if number < (self.view.number if self.view else 0):
            return
        if self.held is not None and step <= self.held.step:
            return
        self._sums.setdefault((number, step), {})[peer] = sums
        self._complete()

    def receive_need(self, peer: int, number: int, step: int) -> None:
        """A member of view `number` lacks our sums for `step`."""
        if self.view is not None and number == self.view.number:
            self._send_sums(peer, step)

    def _complete(self) -> None:
        view, held = self.view, self.held
        if view is None or held is None or not self.together:
            return
        number, step = view.number, held.step + 1
        sums = self._sums.get((number, step), {})
        if len(sums) < len(view.lanes) or step > self.training.steps:
            return
        value = following(held.value, sums.values(), self.training.spec.lanes)
        self._own = {}
        # Our own sums of the step before are not needed by anyone any more; of this one, perhaps.
        self._sums.pop((number, step - 1), None)
        self._hold(HeldState(step, value, held.record))
        self.tell("completes step", step, "in view", number)
        self._say()
        self._take_shares()
        self._begin_step()

    # --- shares of a checkpoint -----------------------------------------------------------------

    def _take_shares(self) -> None:
        """Copy the share of each attempt whose step is now; miss those whose step has passed."""
        view, held = self.view, self.held
        if view is None or held is None or not self.together:
            return
        for number, order in list(self._shares.items()):
            attempt = order.attempt
            if number in self.said_parts or number in self.missed or attempt.view != view.number:
                continue
            if attempt.step < held.step:
                self.missed.add(number)
                self._say()
            elif attempt.step == held.step:
                self.said_parts[number] = ()
                self._put(number, Share(*held[:2], order.share, order.shares, held.record))

    def _put(self, number: int, share: Share) -> None:
        key = f"{self.key.job}/{share.step}/{share.which}of{share.shares}/{share.value:016x}"

        def put() -> None:
            self.world.blobs.put(key, share)
            if self.world.faults.strikes("put crash"):
                self.end(Ending(signal=9))
                return
            self.said_parts[number] = (Part(key, 8, f"{share.value:016x}"),)
            self._say()

        self.after(self.kernel.between(*PUT_S), put)

    # --- messages -------------------------------------------------------------------------------

    def _send(self, peer: int, action: Callable[[Worker], None]) -> None:
        target = self.world.process(Key(self.key.job, peer))
        if target is not None:
            self.world.network.send(
                self.host.name, target, target.host.name, lambda: action(target)
            )

    def _ask_again(self) -> None:
        """Nothing has moved for a while: somebody's message may be lost."""
        self.after(ASK_AGAIN_S, self._ask_again)
        view, held = self.view, self.held
        mark = (view, held, self.together)
        if mark != self._marked or view is None or self.ending:
            self._marked = mark
            self._suspect(())
            return
        self._asked += 1
        if not self.together:
            self._meet()
            silent = [p for p in self._peers() if (view.number, p) not in self._meeting]
            for peer in silent:
                self._greet(peer, asks=True)
            self._suspect(silent)
            return
        assert held is not None
        step, me = held.step + 1, self.key.worker
        sums = self._sums.get((view.number, step), {})
        silent = [peer for peer in self._peers() if peer not in sums]
        for peer in silent:
            self._send(peer, lambda worker: worker.receive_need(me, view.number, step))
        self._suspect(silent if me in sums else ())

    def _suspect(self, silent: Iterable[int]) -> None:
        """Say who has been silent for too long; nobody, if something moves again."""
        peers = frozenset(silent)
        if not peers:
            self._asked = 0
        suspects = peers if self._asked >= ASKS_MAX else frozenset()
        if suspects != self.suspects:
            self.suspects = suspects
            self.world.happened["suspicion"] += bool(suspects)
            self._say()
