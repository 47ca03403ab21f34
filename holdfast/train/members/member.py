"""A member of a job's views: it meets the others, gets or gives the state, and goes step by step.

    member = Member(link, holder, blobs)
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

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NoReturn

from holdfast.storage import Blobs
from holdfast.train.link import Link
from holdfast.train.members.bell import Bell
from holdfast.train.members.door import Door
from holdfast.train.members.effective import extended, in_effect
from holdfast.train.members.hello import Epoch, Hello
from holdfast.train.members.keeping import Holder, Keeper
from holdfast.train.members.meeting import Meeting, conclude
from holdfast.train.members.mesh import Mesh
from holdfast.train.members.watch import Watch
from holdfast.train.members.wires import tune
from holdfast.train.states import divergence, handover
from holdfast.wire import logs
from holdfast.wire.errors import PeerLost, Usage
from holdfast.wire.job_credentials import Credentials
from holdfast.wire.limits import REMEET_S
from holdfast.wire.orders import View

# A worker that leaves gives the share that it is writing so long: well within its notice.
LEAVE_SAVING_S: Final = 10.0

__all__ = ["Holder", "Left", "Member"]
log = logs.get(__name__)
# Whoever waits looks around so often, even if nothing has woken it.
_LOOK_S: Final = 1.0


class Left(SystemExit):
    """This worker was asked to leave, and has said so: the process may end with status 0. Nothing
    is wrong. (A `SystemExit`: a loop that catches every `Exception` does not swallow it.)"""


class _Asked(Exception):
    """It was asked to leave while it wanted to meet."""


class Member(Keeper):
    """One worker's part in its job. Its methods are for one thread; only `mesh` is for many.

    Besides what is here: `step`, the last completed one of the state that is held; `settings`,
    those in effect for step `step + 1`; and `count()`, see there.
    """

    view: View
    mesh: Mesh
    lanes: tuple[int, ...]  # those of this worker, ascending

    def __init__(self, link: Link, holder: Holder, blobs: Blobs | None) -> None:
        """`blobs`: where checkpoints are; None: this job has none. The link is the member's from
        now on: it is closed with it."""
        if not link.ports:
            raise Usage(
                f"worker {link.worker} of job {link.job!r} has no port to meet its peers at",
                fix="start it with an agent of the same version",
            )
        self._bell = Bell()
        super().__init__(link, holder, blobs, self._bell.ring)
        credentials = Credentials.read(link.folder, link.job)
        where = (link.host, link.ports[0])
        self._door = Door(credentials, link.worker, *where, self._bell, link.fail)
        self._watch = Watch(credentials, link.worker, self._peers_keep_us, link.fail)
        self._waits = {"meeting": False, "mesh": False}
        self.lanes = ()
        self._met_at = 0  # the step that was agreed in the last meeting
        self.on_meeting: Callable[[], None] | None = None  # called when there is a new mesh
        self.mesh = Mesh(link.worker, 0, 0, {})
        self.view = View(0, {})
        link.listen(self._heard)

    # --- what the worker calls ------------------------------------------------------------------

    def join(self) -> None:
        """Wait for the first view, meet, and hold the state. Raises `Left`."""
        self._link.ready()
        self._entered()

    def renew(self) -> bool:
        """Meet again: after `PeerLost`, or for a newer view. True: what was computed for step
        `step + 1` is of no use any more (the state was replaced, or its settings have changed).
        Otherwise sums of lanes that are still in `lanes` stay valid. Raises `Left`."""
        before = (self.step, self.settings)
        replaced = self._entered()
        return replaced or before != (self.step, self.settings)

    def boundary(self, metrics: Mapping[str, float] | None = None) -> bool:
        """A step is complete, and `holder.state()` is that of the next number. Report it, copy a
        share aside if a checkpoint wants one, compare digests, adopt a waiting view. True: the
        state was replaced or the lanes have changed. Raises `Left` if asked to leave."""
        if not self.unsettled:
            self.count()
        self.unsettled = False
        self._link.step(self.step, metrics)
        lanes, replaced = self.lanes, False
        try:
            # Where members have met, some may be before this boundary and some behind it.
            if divergence.due(self.step) and self.mesh.peers and self.step != self._met_at:
                replaced = self._compare(self.mesh)
        except PeerLost:
            replaced = self._entered()
        self._take_share(self.view.number)
        if self._link.leaving:
            self.leave()
        if self._link.view(timeout_s=0) is not None:
            replaced = self._entered() or replaced
        return replaced or lanes != self.lanes

    def diverge(self) -> NoReturn:
        """See `Membership`."""
        self._diverge(self.mesh)

    def finish(self) -> None:
        """The last step is complete. Stay until it is committed (writing shares, following views),
        or until it is asked to leave for another reason; then say that it left, and return.

        Which of the two it was it cannot know. So it never says that the job is done: the control
        plane knows what is committed, and would have to believe it.
        """
        self._link.ending(self.step)
        while not self._link.leaving:
            self._wait_for("meeting", True)
            self._bell.still()
            self._take_share(self.view.number, patient=True)
            if self.mesh.broken or self._link.view(timeout_s=0) is not None:
                with suppress(_Asked):  # then it leaves, as it would anyway
                    self._enter()
                    self._link.ending(self.step)
            else:
                self.mesh.idle(self._bell.fileno(), _LOOK_S)
        self._link.left()
        self.close()

    def close(self) -> None:
        """Let go of everything, after an error too. The state is the holder's."""
        self.mesh.close()
        self._door.close()
        self._watch.close()
        if self._saver is not None:
            self._saver.close(LEAVE_SAVING_S)
        self._link.close()
        self._bell.close()

    # --- meeting --------------------------------------------------------------------------------

    def _entered(self) -> bool:
        try:
            return self._enter()
        except _Asked:
            self.leave()

    def _enter(self) -> bool:
        """Meet, until it has come to something; whether the state was replaced. Raises `_Asked`."""
        why = self.mesh.broken
        self.mesh.close()
        self._wait_for("meeting", True)
        if why is not None:
            log.info("meets again", worker=self._link.worker, step=self.step, why=why.what)
            if why.suspect and why.peer is not None:
                self._link.suspects({why.peer})
            if self._door.round <= self.mesh.round:
                self._link.view(timeout_s=REMEET_S)
        replaced = False
        while True:
            view = self._next_view()
            meeting = self._meet(view)
            if meeting is None:
                continue
            try:
                replaced = self._settle(view, meeting) or replaced
            except PeerLost as error:
                log.info("met in vain", worker=self._link.worker, view=view.number, why=error.what)
                self.mesh.close()
                continue
            self._wait_for("meeting", False)
            return replaced

    def _next_view(self) -> View:
        """The newest view, which may be the present one, once its settings are known too."""
        link = self._link
        while not link.leaving:
            view = link.view(timeout_s=0) or self.view
            if view.number and len(link.settings) >= view.settings:
                if view.number != self.view.number:
                    self.view = view
                    link.adopted(view.number, self.step if self._holds else None)
                return view
            self._bell.wait(_LOOK_S)
        raise _Asked

    def _meet(self, view: View) -> Meeting | None:
        """Meet in the next round of this view; None: it came to nothing, look again."""
        link, mesh = self._link, self.mesh
        round_ = 0
        if mesh.view == view.number:
            round_ = max(mesh.round + 1, self._door.round)
        elif self._door.view == view.number:
            round_ = self._door.round
        epoch = Epoch(view.number, round_)
        mine = Hello("meet", link.job, link.worker, -1, epoch, self._brings, self._record)
        peers = [worker for worker in view.lanes if worker != link.worker]
        meeting = Meeting(self._door, self._bell, mine, view.addresses, peers)
        if not meeting.run(self._is_over, link.suspects):
            return None
        sockets = {peer: tune(sock) for peer, sock in meeting.sockets.items()}
        self.mesh = Mesh(link.worker, view.number, round_, sockets)
        self._door.met(self.mesh.close)
        self._watch.over(self.mesh, view.addresses)
        self._heard()
        return meeting

    def _is_over(self) -> bool:
        return self._link.leaving or self._link.view(timeout_s=0) is not None

    def _settle(self, view: View, meeting: Meeting) -> bool:
        """Come to the state that all conclude on; whether it is another than before."""
        me, found = self._link.worker, conclude(meeting.brought)
        source = found.source
        replaced = source is None or me in found.takers
        if source is None:
            self._start(view, self._wait_for_news)
        elif me == source and found.takers:
            handover.give(self.mesh, found.takers, self._state())
        elif replaced:
            self._adopt(handover.take(self.mesh, source))
        # The source's, also for those who hold the same state: they may have met without it.
        record = self._record if source is None else meeting.brought[source].record
        self._record = extended(record, self._link.settings, view.settings, self.step)
        self.settings = in_effect(self._record, self.step + 1)
        self.lanes = tuple(sorted(view.lanes[me]))
        if source is None and not self._holds:
            self._holder.fresh()
            self._holds = True
        self._met_at = self.step
        self._link.adopted(view.number, self.step)
        log.info("met", worker=me, view=view.number, members=len(view.lanes), step=self.step)
        self._take_share(view.number)
        if self.on_meeting is not None:
            self.on_meeting()
        return replaced

    def _wait_for_news(self, at_most_s: float | None) -> bool:
        """Until this meeting is over, or the time; whether it is over."""
        until_s = None if at_most_s is None else time.monotonic() + at_most_s
        while not self._is_over() and self._door.round == self.mesh.round:
            left_s = _LOOK_S if until_s is None else until_s - time.monotonic()
            if left_s <= 0:
                return False
            self._bell.wait(min(left_s, _LOOK_S))
        return True

    # --- small things ---------------------------------------------------------------------------

    def leave(self) -> NoReturn:
        """Say that it leaves, let go of everything, and raise `Left`."""
        self._link.left()
        self.close()
        raise Left(0)

    def _heard(self) -> None:
        """Something came from the agent; also called in the link's thread."""
        self._bell.ring()
        if self._link.failed:
            self.mesh.close(PeerLost("a thread of this worker has died"))
            return
        view, mesh = self._link.view(timeout_s=0), self.mesh
        if view is None:
            return
        gone = sorted(set(mesh.peers) - set(view.lanes))
        if gone or self._link.worker not in view.lanes:
            mesh.close(PeerLost(f"view {view.number} is without workers {gone}"))

    def _peers_keep_us(self, waits: bool) -> None:
        self._wait_for("mesh", waits)

    def _wait_for(self, what: str, waits: bool) -> None:
        self._waits[what] = waits
        self._link.waits(any(self._waits.values()))
