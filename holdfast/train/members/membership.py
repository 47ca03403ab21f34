"""What a run needs of its member, be it one of many or alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn, Protocol

from holdfast.train.members.mesh import Mesh
from holdfast.wire.orders import View


class Membership(Protocol):
    """See `holdfast.train.members.member.Member`."""

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
