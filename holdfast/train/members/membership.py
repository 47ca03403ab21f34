"""What a run and its member need of each other, be the member one of many or alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn, Protocol

from holdfast.train.members.mesh import Mesh
from holdfast.train.states.state import TrainingState
from holdfast.wire.orders import View


class RunMember(Protocol):
    """What a run needs. See `holdfast.train.members.member.ViewMember`."""

    step: int
    view: View
    mesh: Mesh
    lanes: tuple[int, ...]
    settings: Mapping[str, str]
    unsettled: bool

    @property
    def is_shared(self) -> bool:
        """Whether somebody else may ever be given the state: a peer, or a later start."""

    @property
    def is_alone(self) -> bool:
        """Whether there are no others, and never will be."""

    @property
    def digest(self) -> str | None:
        """Of the state of the last step, if a checkpoint took a share of it; to be compared."""

    def diverge(self) -> NoReturn:
        """The digests of the members are known to differ: the checkpoint of this step is not to be
        used. Raises `Diverged`, which says who differs in what."""

    def join(self) -> None: ...

    def renew(self) -> bool: ...

    def count(self) -> None: ...

    def boundary(self, metrics: Mapping[str, float] | None = None) -> bool: ...

    def finish(self) -> None: ...

    def leave(self) -> NoReturn: ...

    def close(self) -> None: ...


class Holder(Protocol):
    """Who owns the state. Called only from inside the member's own methods, by their caller.

    After each step the entries and the notes are the same on all members: they are compared.
    """

    def fresh(self) -> None:
        """Make the state of step 0: a pure function of the job and `member.settings`."""

    def state(self) -> TrainingState:
        """The state as the last completed step left it, also when called in the middle of the next
        one. Its `step` is not looked at: the member knows it. The buffers may be views of the
        holder's own memory: they are read before the member's method returns. Notes must not use
        the key `holdfast`."""

    def adopt(self, state: TrainingState) -> None:
        """Take this state over, all of it; copy from its buffers, or keep them: they are yours."""
