"""Whether two values are the same, whatever they are made of: samples, tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def same(one: Any, other: Any) -> bool:
    """Bit for bit where it is tensors or arrays. What cannot be compared counts as the same."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and _equal(one, other)
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "tobytes") and hasattr(one, "shape"):  # an array, without importing numpy
        return bool(one.shape == other.shape and one.tobytes() == other.tobytes())
    if isinstance(one, str | bytes | int | float | bool):
        return repr(one) == repr(other)
    return True


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if torch.equal(one, other):
        return True
    if not (one.is_floating_point() or one.is_complex()):
        return False
    return torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
