"""The state that a member holds: where it comes from, whether it is right, how it is saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NoReturn, Protocol

from holdfast.storage import Blobs
from holdfast.train.link import Link
from holdfast.train.members.effective import Record, Setting, in_effect
from holdfast.train.members.mesh import Mesh
from holdfast.train.states import comparison, handover
from holdfast.train.states.divergence import Diverged, digests, diverged, together, turn_of
from holdfast.train.states.restoring import restore
from holdfast.train.states.saving import Saver
from holdfast.train.states.state import State
from holdfast.wire import logs
from holdfast.wire.backoff import Backoff
from holdfast.wire.errors import Corrupt, HoldfastError, Missing, PeerLost
from holdfast.wire.limits import SAVE_AGAIN_S, SAVE_AGAIN_S_MAX
from holdfast.wire.orders import View

log = logs.get(__name__)
_OURS: Final = "holdfast"  # our own notes among the holder's


# Wait until the present meeting is over, at most so many seconds; whether it is over.
Wait = Callable[[float | None], bool]


class Holder(Protocol):
    """Who owns the state. Called only from inside the member's own methods, by their caller.

    After each step the entries and the notes are the same on all members: they are compared.
    """

    def fresh(self) -> None:
        """Make the state of step 0: a pure function of the job and `member.settings`."""

    def state(self) -> State:
        """The state as the last completed step left it, also when called in the middle of the next
        one. Its `step` is not looked at: the member knows it. The buffers may be views of the
        holder's own memory: they are read before the member's method returns. Notes must not use
        the key `holdfast`."""

    def adopt(self, state: State) -> None:
        """Take this state over, all of it; copy from its buffers, or keep them: they are yours."""


class Keeper:
    """What one worker holds: the state of `step`, and the record of settings that belongs to it."""

    step: int  # the last completed one of the state that is held
    settings: Mapping[str, str]  # in effect for step `step + 1`
    unsettled: bool  # a step was counted, and its boundary has not come yet

    def __init__(self, link: Link, holder: Holder, blobs: Blobs | None, news: Callable[[], None]):
        self._link = link
        self._holder = holder
        self._blobs = blobs
        self._saver = Saver(blobs, link.part_done, news) if blobs is not None else None
        self._holds = False  # whether there is a state
        self._wrong = False  # it is known not to be that of the majority
        self._unreadable = 0  # the view whose checkpoint could not be read here
        self._record: Record = ()
        self._replaced = 0  # states of members that were wrong, in the whole job
        self._digest: tuple[int, str] | None = None  # of the state that a share was last taken of
        self.step, self.settings, self.unsettled = 0, {}, False

    def count(self) -> None:
        """The holder has completed a step: from now on its state is that of the next number. For
        those who have something to do between that and the `boundary`, which does it otherwise."""
        self.step += 1
        self.settings = in_effect(self._record, self.step + 1)
        self.unsettled = True

    @property
    def is_shared(self) -> bool:
        """See `Membership`; so have the next two."""
        return True

    @property
    def is_alone(self) -> bool:
        return False

    @property
    def digest(self) -> str | None:
        step, digest = self._digest or (-1, None)
        return digest if step == self.step else None

    def _diverge(self, mesh: Mesh) -> NoReturn:
        self._link.unreadable(self.step, "its workers held different states")
        _, differ = comparison.compare(mesh, self._state())
        raise diverged(f"after step {self.step}", "; ".join(differ))

    @property
    def _brings(self) -> int | None:
        """The step of the state that it can offer to others."""
        return self.step if self._holds and not self._wrong else None

    def _start(self, view: View, wait: Wait) -> None:
        """Nobody holds a state: begin where the view says. `PeerLost`: not here and now."""
        step = view.restore_step
        if step is None and self._wrong:
            raise Diverged(
                f"worker {self._link.worker} is left alone with a state that is known to be wrong",
                fix="nothing: the job goes on from its last checkpoint",
            )
        if step is None or self._unreadable == view.number:
            wait(None)  # all of us say so: another view comes
            raise PeerLost("nobody can start in this view")
        self.step, self._record, self._holds = step, (), False
        if step == 0:
            return
        try:
            state = self._restored(view.manifest, step, wait)
        except (Corrupt, Missing) as error:
            log.warning("a checkpoint cannot be read", step=step, reason=str(error))
            self._unreadable = view.number
            self._link.unreadable(step, error.sentence)
            raise PeerLost("it cannot read the checkpoint", why=error.what) from error
        self._adopt(state)

    def _restored(self, manifest: str, step: int, wait: Wait) -> State:
        """The checkpoint's state. `Corrupt` or `Missing`: it is lost. A store that is away, or does
        not let us in, is waited for: that says nothing about the checkpoint."""
        assert self._blobs is not None, "a checkpoint was committed, so there is a store"
        again = Backoff(SAVE_AGAIN_S, SAVE_AGAIN_S_MAX)
        while True:
            try:
                return restore(self._blobs, manifest, self._link.job, step)
            except (Corrupt, Missing):
                raise
            except HoldfastError as error:
                log.warning("a checkpoint cannot be read now", step=step, reason=str(error))
                if wait(again.failed()):
                    raise PeerLost("another view has come") from error

    def _state(self) -> State:
        held = self._holder.state()
        settings = [list(setting) for setting in self._record]
        ours = {"settings": settings, "replaced": self._replaced}
        return State(self.step, held.entries, {**held.notes, _OURS: ours})

    def _adopt(self, state: State) -> None:
        notes = dict(state.notes)
        ours = notes.pop(_OURS, {})
        self._record = tuple(Setting(*setting) for setting in ours.get("settings", ()))
        self._replaced = int(ours.get("replaced", 0))
        self.unsettled = False  # the holder says so if there is still something to do
        self._holder.adopt(State(state.step, state.entries, notes))
        self.step, self._holds, self._wrong = state.step, True, False

    def _compare(self, mesh: Mesh) -> bool:
        """Whether this member's state was wrong, and was replaced by the majority's."""
        state, me = self._state(), self._link.worker
        verdict, differ = comparison.compare(mesh, state)
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
        link, saver = self._link, self._saver
        if self.unsettled:
            return  # what the step leaves behind is not complete
        for share in link.shares():
            attempt = share.attempt
            if saver is not None and attempt.number == saver.attempt:
                continue  # it is being written
            if saver is not None and saver.busy:
                saver.drop()
            if attempt.view != view or attempt.step > self.step:
                continue
            if saver is None or attempt.step < self.step:
                link.missed(attempt.number)
            elif not saver.busy:
                state = self._state()
                stall_s = saver.take(share.attempt.number, share.share, share.shares, state)
                if share.shares > 1:
                    found = digests(state, turn_of(state))
                    self._digest = self.step, together(found).hex()
                log.debug("copied a share", step=self.step, stall_ms=round(stall_s * 1000, 3))
            elif not patient:
                link.missed(attempt.number)
