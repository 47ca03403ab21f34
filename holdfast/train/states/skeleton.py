"""State dictionaries as JSON and tensors, exactly: nothing is pickled, nothing is rounded.

`encode` takes the tensors out and leaves a skeleton; `decode` puts them in again. What is neither a
tensor nor a plain value is refused, by name: a checkpoint must be readable without running code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch

from holdfast.wire.errors import Corrupt, Usage


def encode(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    """The skeleton of a value; its tensors go to `tensors` by their paths."""
    if isinstance(value, torch.Tensor):
        tensors[path] = value
        return {"tensor": path}
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return {"float": float(value).hex()}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, Counter):
        return {"counter": _pairs(value, path, tensors)}
    if isinstance(value, Mapping):
        return {"map": _pairs(value, path, tensors)}
    if isinstance(value, (list, tuple)):
        inner = [encode(each, f"{path}.{number}", tensors) for number, each in enumerate(value)]
        return {"tuple": inner} if isinstance(value, tuple) else inner
    raise Usage(
        f"{path!r} is a {type(value).__name__}, which a checkpoint cannot hold",
        why="only tensors, numbers, text, lists and dictionaries of them can be read back safely",
        fix="leave it out of state_dict(), or spell it with those",
    )


def decode(skeleton: Any, tensor: Callable[[str], torch.Tensor]) -> Any:
    """The value of a skeleton; `tensor(path)` gives the tensors."""
    if isinstance(skeleton, list):
        return [decode(each, tensor) for each in skeleton]
    if not isinstance(skeleton, Mapping):
        return skeleton
    ((kind, body),) = skeleton.items()
    if kind == "tensor":
        return tensor(body)
    if kind == "float":
        return float.fromhex(body)
    if kind == "bytes":
        return bytes.fromhex(body)
    if kind == "tuple":
        return tuple(decode(each, tensor) for each in body)
    if kind in ("map", "counter"):
        pairs = {key: decode(each, tensor) for key, each in body}
        return Counter(pairs) if kind == "counter" else pairs
    raise Corrupt(f"a skeleton has the kind {kind!r}", fix="use the version that wrote it")


def _pairs(
    value: Mapping[Any, Any], path: str, tensors: dict[str, torch.Tensor]
) -> list[list[Any]]:
    for key in value:
        if not isinstance(key, (str, int)):
            raise Usage(
                f"{path!r} has a key of the type {type(key).__name__}",
                why="a checkpoint can hold only text and whole numbers as keys",
                fix="spell the key as text in state_dict()",
            )
    return [[key, encode(each, f"{path}.{key}", tensors)] for key, each in value.items()]
