"""A member of a job's views: it meets the others, gets or gives the state, and goes step by step.

    member = ViewMember(agent, holder, blobs)
    member.join()                         # the first view, the meeting, the state
    while member.step < last:
        try:
            ...compute lanes `member.lanes` of step `member.step + 1` with `member.settings`...
            ...combine over `member.mesh` (tags from 16 on), then update the state...
        except PeerLost:
            if member.renew():            # True: drop what was computed for the step
                ...
            continue                      # lanes may be others; sums of kept lanes stay valid
        member.boundary(metrics)
    member.finish()

*Meeting.* Members of a view connect to each other and tell which step they hold. The most advanced
(the lowest number among equals) is the source; whoever holds another state takes the source's, from
its memory. If nobody holds one, all start from what the view says: the beginning, or a committed
checkpoint. A meeting has a view and a round: when links break although the view stays, members meet
again in the next round. All who complete a meeting have seen the same, so all conclude the same.

*Settings.* Everyone who meets knows the first `view.settings` of the job's settings. One that is
new takes effect at max(its own step, the step agreed in the meeting + 1). The effective steps are
part of the state's notes: joiners, restores and replays take them over.

*Between steps.* A newer view with all present members in it is adopted at the next boundary. One
without some of them breaks the mesh at once: they may be dead without a sign.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NoReturn

from holdfast.storage import Blobs
from holdfast.system import logs
from holdfast.system.backoff import Backoff
from holdfast.system.job_credentials import Credentials
from holdfast.system.tasks import Died, start_thread
from holdfast.train.members.effective import EffectiveSetting, Record, extended, in_effect
from holdfast.train.members.greeting import Epoch, Hello, probe
from holdfast.train.members.listener import PeerListener
from holdfast.train.members.meeting import Meeting, conclude
from holdfast.train.members.membership import Holder
from holdfast.train.members.mesh import Mesh, tune
from holdfast.train.members.wakeup import Wakeup
from holdfast.train.states import divergence, handover
from holdfast.train.states.checkpoints import Saver, restore
from holdfast.train.states.divergence import Diverged, digests, diverged, together, turn_of
from holdfast.train.states.state import TrainingState
from holdfast.wire.errors import Corrupt, HoldfastError, Missing, PeerLost, Usage
from holdfast.wire.limits import (
    PEER_SILENCE_S,
    PROBE_AFTER_S,
    REMEET_S,
    SAVE_AGAIN_S,
    SAVE_AGAIN_S_MAX,
)
from holdfast.wire.orders import View
from holdfast.worker.agent_client import AgentClient

# A worker that leaves gives the share that it is writing so long: well within its notice.
LEAVE_SAVING_S: Final = 10.0

log = logs.get(__name__)
_OURS: Final = "holdfast"  # our own notes among the holder's
# Whoever waits looks around so often, even if nothing has woken it.
_LOOK_S: Final = 1.0


class WorkerLeft(SystemExit):
    """This worker was asked to leave, and has said so: the process may end with status 0. Nothing
    is wrong. (A `SystemExit`: a loop that catches every `Exception` does not swallow it.)"""


class _AskedToLeave(Exception):
    """It was asked to leave while it wanted to meet."""


class ViewMember:
    """One worker's part in its job. Its methods are for one thread; only `mesh` is for many."""

    step: int  # the last completed one of the state that is held
    settings: Mapping[str, str]  # in effect for step `step + 1`
    unsettled: bool  # a step was counted, and its boundary has not come yet
    view: View
    mesh: Mesh
    lanes: tuple[int, ...]  # those of this worker, ascending

    def __init__(self, agent: AgentClient, holder: Holder, blobs: Blobs | None) -> None:
        """`blobs`: where checkpoints are; None: this job has none. The client is the member's from
        now on: it is closed with it."""
        if not agent.ports:
            raise Usage(
                f"worker {agent.worker} of job {agent.job!r} has no port to meet its peers at",
                fix="start it with an agent of the same version",
            )
        self._wakeup = Wakeup()
        self._agent = agent
        self._holder = holder
        self._blobs = blobs
        self._saver = Saver(blobs, agent.part_done, self._wakeup.set) if blobs is not None else None
        self._holds = False  # whether there is a state
        self._wrong = False  # it is known not to be that of the majority
        self._unreadable = 0  # the view whose checkpoint could not be read here
        self._record: Record = ()
        self._replaced = 0  # states of members that were wrong, in the whole job
        self._digest: tuple[int, str] | None = None  # of the state that a share was last taken of
        self.step, self.settings, self.unsettled = 0, {}, False
        credentials = Credentials.read(agent.folder, agent.job)
        where = (agent.host, agent.ports[0])
        self._listener = PeerListener(credentials, agent.worker, *where, self._wakeup, agent.fail)
        self._watch = LivenessWatch(credentials, agent.worker, self._peers_keep_us, agent.fail)
        self._waits = {"meeting": False, "mesh": False}
        self.lanes = ()
        self._met_at = 0  # the step that was agreed in the last meeting
        self.on_meeting: Callable[[], None] | None = None  # called when there is a new mesh
        self.mesh = Mesh(agent.worker, 0, 0, {})
        self.view = View(0, {})
        agent.listen(self._on_agent_message)

    # --- what the worker calls ------------------------------------------------------------------

    def join(self) -> None:
        """Wait for the first view, meet, and hold the state. Raises `WorkerLeft`."""
        self._agent.ready()
        self._entered()

    def renew(self) -> bool:
        """Meet again: after `PeerLost`, or for a newer view. True: what was computed for step
        `step + 1` is of no use any more (the state was replaced, or its settings have changed).
        Otherwise sums of lanes that are still in `lanes` stay valid. Raises `WorkerLeft`."""
        before = (self.step, self.settings)
        replaced = self._entered()
        return replaced or before != (self.step, self.settings)

    def boundary(self, metrics: Mapping[str, float] | None = None) -> bool:
        """A step is complete, and `holder.state()` is that of the next number. Report it, copy a
        share aside if a checkpoint wants one, compare digests, adopt a waiting view. True: the
        state was replaced or the lanes have changed. Raises `WorkerLeft` if asked to leave."""
        if not self.unsettled:
            self.count()
        self.unsettled = False
        self._agent.step(self.step, metrics)
        lanes, replaced = self.lanes, False
        try:
            # Where members have met, some may be before this boundary and some behind it.
            if divergence.due(self.step) and self.mesh.peers and self.step != self._met_at:
                replaced = self._compare()
        except PeerLost:
            replaced = self._entered()
        self._take_share(self.view.number)
        if self._agent.leaving:
            self.leave()
        if self._agent.view(timeout_s=0) is not None:
            replaced = self._entered() or replaced
        return replaced or lanes != self.lanes

    def diverge(self) -> NoReturn:
        """See `RunMember`."""
        self._agent.unreadable(self.step, "its workers held different states")
        _, differ = handover.compare(self.mesh, self._state())
        raise diverged(f"after step {self.step}", "; ".join(differ))

    def finish(self) -> None:
        """The last step is complete. Stay until it is committed (writing shares, following views),
        or until it is asked to leave for another reason; then say that it left, and return.

        Which of the two it was it cannot know. So it never says that the job is done: the control
        plane knows what is committed, and would have to believe it.
        """
        self._agent.ending(self.step)
        while not self._agent.leaving:
            self._wait_for("meeting", True)
            self._wakeup.clear()
            self._take_share(self.view.number, patient=True)
            if self.mesh.broken or self._agent.view(timeout_s=0) is not None:
                with suppress(_AskedToLeave):  # then it leaves, as it would anyway
                    self._enter()
                    self._agent.ending(self.step)
            else:
                self.mesh.idle(self._wakeup.fileno(), _LOOK_S)
        self._agent.left()
        self.close()

    def close(self) -> None:
        """Let go of everything, after an error too. The state is the holder's."""
        self.mesh.close()
        self._listener.close()
        self._watch.close()
        if self._saver is not None:
            self._saver.close(LEAVE_SAVING_S)
        self._agent.close()
        self._wakeup.close()

    def count(self) -> None:
        """The holder has completed a step: from now on its state is that of the next number. For
        those who have something to do between that and the `boundary`, which does it otherwise."""
        self.step += 1
        self.settings = in_effect(self._record, self.step + 1)
        self.unsettled = True

    @property
    def is_shared(self) -> bool:
        """See `RunMember`, also for the next two."""
        return True

    @property
    def is_alone(self) -> bool:
        return False

    @property
    def digest(self) -> str | None:
        step, digest = self._digest or (-1, None)
        return digest if step == self.step else None

    # --- meeting --------------------------------------------------------------------------------

    def _entered(self) -> bool:
        try:
            return self._enter()
        except _AskedToLeave:
            self.leave()

    def _enter(self) -> bool:
        """Meet, until it has come to something; whether the state was replaced. Raises
        `_AskedToLeave`."""
        why = self.mesh.broken
        self.mesh.close()
        self._wait_for("meeting", True)
        if why is not None:
            log.info("meets again", worker=self._agent.worker, step=self.step, why=why.what)
            if why.suspect and why.peer is not None:
                self._agent.suspects({why.peer})
            if self._listener.round <= self.mesh.round:
                self._agent.view(timeout_s=REMEET_S)
        replaced = False
        while True:
            view = self._next_view()
            meeting = self._meet(view)
            if meeting is None:
                continue
            try:
                replaced = self._settle(view, meeting) or replaced
            except PeerLost as error:
                log.info("met in vain", worker=self._agent.worker, view=view.number, why=error.what)
                self.mesh.close()
                continue
            self._wait_for("meeting", False)
            return replaced

    def _next_view(self) -> View:
        """The newest view, which may be the present one, once its settings are known too."""
        agent = self._agent
        while not agent.leaving:
            view = agent.view(timeout_s=0) or self.view
            if view.number and len(agent.settings) >= view.settings:
                if view.number != self.view.number:
                    self.view = view
                    agent.adopted(view.number, self.step if self._holds else None)
                return view
            self._wakeup.wait(_LOOK_S)
        raise _AskedToLeave

    def _meet(self, view: View) -> Meeting | None:
        """Meet in the next round of this view; None: it came to nothing, look again."""
        agent, mesh = self._agent, self.mesh
        round_ = 0
        if mesh.view == view.number:
            round_ = max(mesh.round + 1, self._listener.round)
        elif self._listener.view == view.number:
            round_ = self._listener.round
        epoch = Epoch(view.number, round_)
        mine = Hello("meet", agent.job, agent.worker, -1, epoch, self._brings, self._record)
        peers = [worker for worker in view.lanes if worker != agent.worker]
        meeting = Meeting(self._listener, self._wakeup, mine, view.addresses, peers)
        if not meeting.run(self._is_over, agent.suspects):
            return None
        sockets = {peer: tune(sock) for peer, sock in meeting.sockets.items()}
        self.mesh = Mesh(agent.worker, view.number, round_, sockets)
        self._listener.met(self.mesh.close)
        self._watch.over(self.mesh, view.addresses)
        self._on_agent_message()
        return meeting

    def _is_over(self) -> bool:
        return self._agent.leaving or self._agent.view(timeout_s=0) is not None

    def _settle(self, view: View, meeting: Meeting) -> bool:
        """Come to the state that all conclude on; whether it is another than before."""
        me, found = self._agent.worker, conclude(meeting.brought)
        source = found.source
        replaced = source is None or me in found.takers
        if source is None:
            self._start(view)
        elif me == source and found.takers:
            handover.give(self.mesh, found.takers, self._state())
        elif replaced:
            self._adopt(handover.take(self.mesh, source))
        # The source's, also for those who hold the same state: they may have met without it.
        record = self._record if source is None else meeting.brought[source].record
        self._record = extended(record, self._agent.settings, view.settings, self.step)
        self.settings = in_effect(self._record, self.step + 1)
        self.lanes = tuple(sorted(view.lanes[me]))
        if source is None and not self._holds:
            self._holder.fresh()
            self._holds = True
        self._met_at = self.step
        self._agent.adopted(view.number, self.step)
        log.info("met", worker=me, view=view.number, members=len(view.lanes), step=self.step)
        self._take_share(view.number)
        if self.on_meeting is not None:
            self.on_meeting()
        return replaced

    def _wait_for_news(self, at_most_s: float | None) -> bool:
        """Until this meeting is over, or the time; whether it is over."""
        until_s = None if at_most_s is None else time.monotonic() + at_most_s
        while not self._is_over() and self._listener.round == self.mesh.round:
            left_s = _LOOK_S if until_s is None else until_s - time.monotonic()
            if left_s <= 0:
                return False
            self._wakeup.wait(min(left_s, _LOOK_S))
        return True

    # --- the state: where it comes from, whether it is right, how it is saved -------------------

    @property
    def _brings(self) -> int | None:
        """The step of the state that it can offer to others."""
        return self.step if self._holds and not self._wrong else None

    def _start(self, view: View) -> None:
        """Nobody holds a state: begin where the view says. `PeerLost`: not here and now."""
        step = view.restore_step
        if step is None and self._wrong:
            raise Diverged(
                f"worker {self._agent.worker} is left alone with a state that is known to be wrong",
                fix="nothing: the job goes on from its last checkpoint",
            )
        if step is None or self._unreadable == view.number:
            self._wait_for_news(None)  # all of us say so: another view comes
            raise PeerLost("nobody can start in this view")
        self.step, self._record, self._holds = step, (), False
        if step == 0:
            return
        try:
            state = self._restored(view.manifest, step)
        except (Corrupt, Missing) as error:
            log.warning("a checkpoint cannot be read", step=step, reason=str(error))
            self._unreadable = view.number
            self._agent.unreadable(step, error.sentence)
            raise PeerLost("it cannot read the checkpoint", why=error.what) from error
        self._adopt(state)

    def _restored(self, manifest: str, step: int) -> TrainingState:
        """The checkpoint's state. `Corrupt` or `Missing`: it is lost. A store that is away, or does
        not let us in, is waited for: that says nothing about the checkpoint."""
        assert self._blobs is not None, "a checkpoint was committed, so there is a store"
        again = Backoff(SAVE_AGAIN_S, SAVE_AGAIN_S_MAX)
        while True:
            try:
                return restore(self._blobs, manifest, self._agent.job, step)
            except (Corrupt, Missing):
                raise
            except HoldfastError as error:
                log.warning("a checkpoint cannot be read now", step=step, reason=str(error))
                if self._wait_for_news(again.failed()):
                    raise PeerLost("another view has come") from error

    def _state(self) -> TrainingState:
        held = self._holder.state()
        settings = [list(setting) for setting in self._record]
        ours = {"settings": settings, "replaced": self._replaced}
        return TrainingState(self.step, held.entries, {**held.notes, _OURS: ours})

    def _adopt(self, state: TrainingState) -> None:
        notes = dict(state.notes)
        ours = notes.pop(_OURS, {})
        self._record = tuple(EffectiveSetting(*setting) for setting in ours.get("settings", ()))
        self._replaced = int(ours.get("replaced", 0))
        self.unsettled = False  # the holder says so if there is still something to do
        self._holder.adopt(TrainingState(state.step, state.entries, notes))
        self.step, self._holds, self._wrong = state.step, True, False

    def _compare(self) -> bool:
        """Whether this member's state was wrong, and was replaced by the majority's."""
        state, me, mesh = self._state(), self._agent.worker, self.mesh
        verdict, differ = handover.compare(mesh, state)
        if not verdict.wrong:
            return False
        if verdict.source is None or self._replaced:
            raise diverged(f"after step {self.step}", "; ".join(differ))
        # Once it may have been a bit that flipped in somebody's memory. Twice it is the script.
        log.error("a member's state is wrong", step=self.step, what="; ".join(differ))
        replaced = self._replaced + 1
        if me == verdict.source:
            handover.give(mesh, verdict.wrong, state)
        self._wrong = mine = me in verdict.wrong
        if mine:
            self._adopt(handover.take(mesh, verdict.source))
        self._replaced = replaced
        return mine

    def _take_share(self, view: int, *, patient: bool = False) -> None:
        """Copy aside what a checkpoint wants of this step; say so if the step has passed."""
        agent, saver = self._agent, self._saver
        if self.unsettled:
            return  # what the step leaves behind is not complete
        for share in agent.shares():
            attempt = share.attempt
            if saver is not None and attempt.number == saver.attempt:
                continue  # it is being written
            if saver is not None and saver.busy:
                saver.drop()
            if attempt.view != view or attempt.step > self.step:
                continue
            if saver is None or attempt.step < self.step:
                agent.missed(attempt.number)
            elif not saver.busy:
                state = self._state()
                stall_s = saver.take(share.attempt.number, share.share, share.shares, state)
                if share.shares > 1:
                    found = digests(state, turn_of(state))
                    self._digest = self.step, together(found).hex()
                log.debug("copied a share", step=self.step, stall_ms=round(stall_s * 1000, 3))
            elif not patient:
                agent.missed(attempt.number)

    # --- small things ---------------------------------------------------------------------------

    def leave(self) -> NoReturn:
        """Say that it leaves, let go of everything, and raise `WorkerLeft`."""
        self._agent.left()
        self.close()
        raise WorkerLeft(0)

    def _on_agent_message(self) -> None:
        """Something came from the agent; also called in the client's thread."""
        self._wakeup.set()
        if self._agent.failed:
            self.mesh.close(PeerLost("a thread of this worker has died"))
            return
        view, mesh = self._agent.view(timeout_s=0), self.mesh
        if view is None:
            return
        gone = sorted(set(mesh.peers) - set(view.lanes))
        if gone or self._agent.worker not in view.lanes:
            mesh.close(PeerLost(f"view {view.number} is without workers {gone}"))

    def _peers_keep_us(self, waits: bool) -> None:
        self._wait_for("mesh", waits)

    def _wait_for(self, what: str, waits: bool) -> None:
        self._waits[what] = waits
        self._agent.waits(any(self._waits.values()))


# --- liveness -------------------------------------------------------------------------------------
# A thread that looks after whoever waits for a peer in a mesh.
#
# A peer may take long for its lanes: that is no fault. So when nothing has come for a while, its
# listener is asked. Silence there, several times and for `PEER_SILENCE_S`, breaks the mesh, with
# that peer as the suspect. A peer that answers from another meeting breaks it too: it will never
# send anything.


_ASKED_MIN: Final = 3


class LivenessWatch:
    """The watch of one worker, for one mesh at a time. `on_wait(True)` is called when somebody
    has waited for peers for a while, `on_wait(False)` when that is over; `died` when nobody
    watches."""

    def __init__(
        self, credentials: Credentials, worker: int, on_wait: Callable[[bool], None], died: Died
    ) -> None:
        self._credentials = credentials
        self._job = credentials.job
        self._worker = worker
        self._on_wait = on_wait
        self._mesh: Mesh | None = None
        self._addresses: Mapping[int, str] = {}
        self._silent: dict[int, tuple[float, int]] = {}  # peer -> unanswered since, how often
        self._end = threading.Event()
        self._thread = start_thread(self._run, "holdfast-watch", died)

    def over(self, mesh: Mesh, addresses: Mapping[int, str]) -> None:
        """Watch this mesh from now on."""
        self._addresses = addresses
        self._mesh = mesh

    def close(self) -> None:
        self._end.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        waits, watched = False, None
        while not self._end.wait(PROBE_AFTER_S / 2):
            mesh = self._mesh
            if mesh is not watched:
                watched, self._silent = mesh, {}
            late = self._late(mesh) if mesh is not None and mesh.broken is None else []
            if bool(late) != waits:
                waits = bool(late)
                self._on_wait(waits)
            if mesh is not None:
                self._silent = {peer: self._silent[peer] for peer in late if peer in self._silent}
                if late:
                    self._ask(mesh, late)

    def _late(self, mesh: Mesh) -> list[int]:
        now_s = time.monotonic()
        waiting = mesh.waiting().items()
        return sorted(peer for peer, since_s in waiting if now_s > since_s + PROBE_AFTER_S)

    def _ask(self, mesh: Mesh, peers: list[int]) -> None:
        epoch = Epoch(mesh.view, mesh.round)
        hellos = {peer: Hello("probe", self._job, self._worker, peer, epoch) for peer in peers}
        asked_s = time.monotonic()
        found = probe(
            hellos,
            self._addresses,
            lambda: mesh.broken is None and not self._closed,
            self._credentials,
        )
        for peer in peers:
            where = found.get(peer)
            if where is None:
                since_s, times = self._silent.get(peer, (asked_s, 0))
                self._silent[peer] = (since_s, times + 1)
                if times + 1 >= _ASKED_MIN and time.monotonic() > since_s + PEER_SILENCE_S:
                    why = f"nothing was heard from it for {PEER_SILENCE_S:g} s"
                    lost = f"worker {peer} does not answer"
                    mesh.close(PeerLost(lost, why=why, peer=peer, suspect=True))
                continue
            self._silent.pop(peer, None)
            if where > epoch:
                mesh.close(PeerLost(f"worker {peer} meets elsewhere by now", peer=peer))

    @property
    def _closed(self) -> bool:
        return self._end.is_set()
