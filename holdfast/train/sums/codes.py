"""The ways to compress, by the names that people give them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from torch import nn

from holdfast.train.states.tracked import Tracked
from holdfast.train.sums.compression import Code, Largest, Rounded, Whole
from holdfast.train.sums.powersgd import LowRank
from holdfast.wire.errors import Usage

NAME: Final = "(compression)"  # among the tracked objects
_MOST: Final = {"topk": 1.0, "powersgd": 1024.0}  # the largest numbers that they take


def of(spelled: str, tracked: Tracked) -> Code | None:
    """The way that this names, for the parameters of these; it is tracked with them. None: none."""
    kind, _, number = spelled.partition(":")
    made: dict[str, Callable[[Sequence[nn.Parameter]], Code]] = {
        "bf16": Rounded,
        "int8": Whole,
        "topk": lambda found: Largest(found, float(number or "0.01")),
        "powersgd": lambda found: LowRank(found, int(number or "4")),
    }
    if spelled == "none":
        return None
    try:
        right = kind in made and (not number or 0 < float(number) <= _MOST[kind])
        code = made[kind](tracked.parameters()) if right else None
    except (ValueError, KeyError):
        code = None
    if code is None:
        raise Usage(
            f"compress={spelled!r}",
            why="there is no such way, or its number is out of range",
            fix="write none, bf16, int8, topk:0.01 (a share) or powersgd:4 (a rank)",
        )
    tracked.add(NAME, code)
    return code
