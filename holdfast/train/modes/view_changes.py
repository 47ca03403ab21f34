"""A run follows its views: it joins, meets the others again when somebody is lost or comes, and
goes on with the mesh, the lanes and the settings that there are then."""

from __future__ import annotations

import sys
from typing import Any, Final

from holdfast.train import refusals
from holdfast.train.members.conversation import END, Conversation, known
from holdfast.train.modes import adjusting
from holdfast.train.modes.current_lane import CurrentLane
from holdfast.train.modes.run_state import RunState
from holdfast.train.modes.update_hooks import UpdateHooks
from holdfast.train.pace import LanePace
from holdfast.train.sums.compression import Code, code_of
from holdfast.wire.errors import Usage


class ViewChanges:
    """Between two batches everything may have changed: the view, the lanes, even the state."""

    def __init__(self, held: RunState, lane: CurrentLane, update_hooks: UpdateHooks) -> None:
        self._held, self._lane, self._update_hooks = held, lane, update_hooks
        self.pace = LanePace()
        # What the job began with: all members have to do the same, also those that join later.
        settings = held.settings
        self.compress = str(settings["compress"]) if "compress" in settings else "none"
        self._code: Code | None = None
        self._talk: Conversation | None = None
        self.joined = self._finished = False

    def join(self) -> None:
        if not self.joined:
            self.check()
            self.joined = True
            self._code = code_of(self.compress, self._held.tracked)
            self._held.sealed = self._code is not None
            self._held.member.join()
            self.go_on()

    def check(self) -> None:
        """`Usage` if what is tracked cannot be trained by many to the same bits."""
        replaces = self._update_hooks.replaces_update
        refusals.check(self._held.tracked, replaces_update=replaces)
        _make_compiler_deterministic()

    def talk(self) -> Conversation:
        """With the members of the present mesh."""
        if self._talk is None:
            self._talk = Conversation(self._held.member.mesh)
        return self._talk

    def met(self) -> None:
        """The member calls this at the end of every meeting: there is a new mesh."""
        self._talk = Conversation(self._held.member.mesh)
        self.pace.anew()
        if self._finished:
            # Whoever still asks for something finds the answer in what we say now.
            place = self._held.member.step, END
            self._talk.tell(place, known(self._held.position.results))

    def renew(self) -> None:
        """The mesh is broken, or a newer view waits."""
        held, member = self._held, self._held.member
        member.mesh.close()
        if held.stepping is not None:
            held.stepping.disconnect()
        held.adopted = False
        stale = member.renew()
        if stale and held.stepping is not None:
            held.stepping.clear()
        self._lane.rehearsal.interrupt(member.step, stale=stale)
        self.go_on()

    def go_on(self) -> None:
        """Go on with the mesh, the lanes and the settings that there are now."""
        held, member = self._held, self._held.member
        if held.stepping is not None:
            # Settings change the optimizers, so these must not be in the middle of a lane.
            held.stepping.buffers.release()
        self._lane.body.forget()
        talk = self.talk()
        if held.unfit:
            self.refit()
        if held.stepping is not None:
            held.stepping.connect(talk)
            held.stepping.keep(held.stepping.lanes)
        adjusting.apply(held.tracked, held.settings, held.applied, member.settings)
        held.applied = dict(member.settings)

    def finish(self) -> None:
        """The script is through: stay until that is committed."""
        self._finished = True
        self._held.member.finish()

    # --- what is trained -----------------------------------------------------------------------

    def open(self) -> None:
        """A loop begins with what is trained now."""
        held = self._held
        held.stepping = held.new_stepping(self._code)
        held.stepping.on_stray = self._lane.body.stray_gradient
        held.stepping.lends = self._lane.gives_twice and self._code is None

    def close(self) -> None:
        """A loop is over."""
        held = self._held
        if held.stepping is not None:
            held.stepping.buffers.release()
        self._lane.body.close()
        if held.stepping is not None:
            held.computed += held.stepping.sums.computed
            held.stepping.close()
            held.stepping = None

    def refit(self) -> None:
        """A hook may have thawed parameters, or changed a module; so may the state of another."""
        held = self._held
        held.unfit = False
        if held.stepping is None or held.stepping.fits(held.tracked):
            return
        if self._code is not None:
            raise Usage(
                f"what is trained has changed, and gradients are compressed ({self.compress})",
                why="what the compression has left out belongs to the parameters of before",
                fix="leave compress out, or train the same parameters all the time",
            )
        self.close()
        self.open()
        self._lane.body.open()
        held.at_step().connect(self.talk())


# `torch.compile` by itself makes kernels for the first shape that it sees, and for any size when it
# sees a second one; and when it has compiled too often, it goes on without. Which lane a worker
# sees first depends on the other workers. So each shape gets kernels of its own here (with
# `dynamic=True` all get the same), running out of room for them is an error, and kernels are not
# chosen by how long they take.
_COMPILER: Final[dict[str, dict[str, Any]]] = {
    "torch._dynamo.config": {
        "automatic_dynamic_shapes": False,
        "fail_on_recompile_limit_hit": True,
    },
    "torch._inductor.config": {"deterministic": True},
}


def _make_compiler_deterministic() -> None:
    """Where the compiler is in use; otherwise it is not even imported."""
    for name, settings in _COMPILER.items():
        module = sys.modules.get(name)
        for key, value in settings.items():
            if module is not None and hasattr(module, key):
                setattr(module, key, value)
