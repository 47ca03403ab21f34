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

    def join(self) -> None: ...

    def renew(self) -> bool: ...

    def count(self) -> None: ...

    def boundary(self, metrics: Mapping[str, float] | None = None) -> bool: ...

    def finish(self) -> None: ...

    def leave(self) -> NoReturn: ...

    def close(self) -> None: ...
