"""What may be captured. Pure: facts in, a decision with its reason out.

A graph repeats kernels, with the numbers that they had as plain arguments, at the addresses that
they had. So what a lane computes must be decided by tensors alone: their sizes are part of what a
graph is found by, and what the function reads on the host must not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

# A lane's function is captured for so many forms of batches, or of the model, at most: a graph has
# memory of its own, and one that changes all the time is slower than none.
CAPTURED_GRAPHS_MAX: Final = 8


# What a graph may be found by beside tensors: values that are equal when they look equal.
_PLAIN: Final = (bool, int, float, str, bytes, type(None))


class Uncapturable(Exception):
    """The sentence says why. It never leaves this package."""


@dataclass(frozen=True, slots=True)
class CaptureFacts:
    """What is known before a lane is computed."""

    device: str = "cuda"
    mode: str = "sync"
    autocast: bool = False  # whether it is on around the call
    gradients: bool = True  # whether they are on there
    hook: str = ""  # one of the script's own, of a module or a parameter
    whole: bool = True  # whether the batch is one of a whole step
    seen: int = 1  # lanes like this one that were computed without a graph
    graphs: int = 0  # that were captured so far


@dataclass(frozen=True, slots=True)
class CaptureDecision:
    capture: bool
    reason: str = ""  # why not; nothing: it is only too early


def decide(facts: CaptureFacts) -> CaptureDecision:
    """Whether this lane is the one to be captured. The first of its kind never is: it makes what
    libraries make once, and a kind that comes once needs no graph."""
    reason = impossible(facts.device, facts.mode) or _unfit(facts)
    return CaptureDecision(not reason and facts.seen > 0, reason)


def impossible(device: str, mode: str) -> str:
    """Why nothing of the run can be captured."""
    if device != "cuda":
        return f"it runs on the {device.upper()}: only a GPU has graphs"
    if mode != "sync":
        return f"in the mode {mode} each lane has weights of its own in every step"
    return ""


def _unfit(facts: CaptureFacts) -> str:
    if facts.autocast:
        return "torch.autocast is on around the call: write it inside of the function"
    if not facts.gradients:
        return "gradients are off around the call"
    if facts.hook:
        return (
            f"{facts.hook} has a hook of the script's own, which would run while it is captured, "
            "and never again"
        )
    if not facts.whole:
        return "a batch of another size than the others' (the last of an epoch) has no graph"
    if facts.graphs >= CAPTURED_GRAPHS_MAX:
        return (
            f"it was captured {facts.graphs} times already: the sizes of batches, or numbers in "
            "the model, change again and again"
        )
    return ""


def after_trial(
    *, read: set[str], drew: bool, replaced: str | None, loss: torch.Tensor | None
) -> str:
    """Why what a function did in a trial cannot be captured: names that it has read; whether it
    drew random numbers on the host; a buffer in whose place it put another tensor."""
    if loss is None:
        return "its result has no loss: return a tensor, or a tuple whose first is the loss"
    if read:
        names = ", ".join(sorted(read))
        return f"it uses {names}, which a graph would not see change"
    if drew:
        return (
            "it draws random numbers on the host (random, NumPy, or torch on the CPU): draw them "
            "on the GPU"
        )
    if replaced is not None:
        return f"it puts another tensor into the place of the buffer {replaced}: write into it"
    return ""


def signature(data: Any) -> tuple[Any, ...]:
    """What a graph is found by: the form of a batch, without the values of its tensors."""
    if isinstance(data, torch.Tensor):
        if data.layout != torch.strided:
            raise Uncapturable(f"the batch has a tensor with the layout {data.layout}")
        return "tensor", tuple(data.shape), data.stride(), data.dtype, data.device
    if isinstance(data, Mapping):
        return "mapping", *((key, signature(value)) for key, value in data.items())
    if isinstance(data, (list, tuple)):
        return type(data), *map(signature, data)
    if type(data) in _PLAIN:
        return "value", type(data), data
    raise Uncapturable(f"the batch has a {type(data).__name__}, which may be another every time")


def loss_of(result: Any) -> torch.Tensor | None:
    """The loss in what a lane's function returned: itself, or the first of several."""
    first = next(iter(result), None) if isinstance(result, (list, tuple)) else result
    return first if isinstance(first, torch.Tensor) else None
