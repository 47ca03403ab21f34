"""A part of the system at one size: what it uses of what it may use, and the size at which it
breaks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PartLoad:
    """How much of a part's limit is used. Above 1 it is broken, or not what was promised."""

    used: float
    limit: float

    @property
    def share(self) -> float:
        return self.used / self.limit


@dataclass(frozen=True, slots=True)
class ScalingPart:
    """A part whose load grows with a size (workers, or requests a second)."""

    name: str
    limit: str  # what the limit is, in words
    load: Callable[[int], PartLoad]


@dataclass(frozen=True, slots=True)
class Break:
    """Where a part breaks: the first size beyond its limit. None: not below `size_max`."""

    part: ScalingPart
    size: int | None


def breaks(parts: Sequence[ScalingPart], size_max: int) -> list[Break]:
    """All parts, the one that breaks first at the head, those that do not at the end."""
    found = [Break(part, breaks_at(part, size_max)) for part in parts]
    return sorted(found, key=lambda one: size_max + 1 if one.size is None else one.size)


def breaks_at(part: ScalingPart, size_max: int) -> int | None:
    """The first size beyond the limit. Loads may fall here and there while they grow, so sizes are
    tried one after the other, a tenth apart; then it is found exactly between two of them."""
    below, size = 0, 1
    while part.load(size).share <= 1.0:
        if size >= size_max:
            return None
        below, size = size, min(size_max, max(size + 1, size * 11 // 10))
    while size - below > 1:
        middle = (below + size) // 2
        if part.load(middle).share > 1.0:
            size = middle
        else:
            below = middle
    return size
