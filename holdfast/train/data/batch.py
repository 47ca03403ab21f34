"""One lane's batch, as the loop's body sees it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch


class Batch:
    """What the data set gave for one lane, collated.

    A pair is `batch.x` and `batch.y`, or `x, y = batch`. A mapping has its keys as attributes and
    items. Whatever else it is lies in `batch.data`. Where a batch is given for several updates,
    `batch.update` says which one it is, from 0 on.
    """

    __slots__ = ("count", "data", "epoch", "lane", "update")

    def __init__(self, data: Any, *, count: int, lane: int, epoch: int, update: int = 0) -> None:
        self.data = data
        self.count = count  # how many samples it has
        self.lane = lane
        self.epoch = epoch
        self.update = update

    def copied(self) -> Batch | None:
        """The same with data of its own: what is done to it in place is not done to this one. None:
        it is nothing that can be copied."""
        place = {"lane": self.lane, "epoch": self.epoch, "update": self.update}
        try:
            return Batch(copy.deepcopy(self.data), count=self.count, **place)
        except (TypeError, RuntimeError):
            return None

    def __repr__(self) -> str:
        return f"Batch(lane={self.lane}, epoch={self.epoch}, count={self.count})"

    @property
    def x(self) -> Any:
        return self._named("x", 0)

    @property
    def y(self) -> Any:
        return self._named("y", 1)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.data)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, key: Any) -> Any:
        return self.data[key]

    def __getattr__(self, name: str) -> Any:
        data = object.__getattribute__(self, "data")
        if isinstance(data, Mapping) and name in data:
            return data[name]
        raise AttributeError(f"the batch has no {name!r}: it is {_kind(data)}")

    def _named(self, name: str, place: int) -> Any:
        if isinstance(self.data, (list, tuple)):
            if len(self.data) > place:
                return self.data[place]
        elif isinstance(self.data, Mapping):
            return self.__getattr__(name)
        elif place == 0:
            return self.data
        raise AttributeError(f"the batch has no {name!r}: it is {_kind(self.data)}")


def _kind(data: Any) -> str:
    if isinstance(data, Mapping):
        return f"a mapping with {', '.join(sorted(map(str, data)))}"
    return f"a {type(data).__name__}"


def moved(data: Any, device: torch.device) -> Any:
    """The same structure with its tensors on the device."""
    return mapped(data, lambda tensor: _moved(tensor, device))


def mapped(data: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same structure with something else in the place of each tensor."""
    if isinstance(data, torch.Tensor):
        return change(data)
    if isinstance(data, Mapping):
        return {key: mapped(value, change) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(mapped(value, change) for value in data))
    if isinstance(data, (list, tuple)):
        return type(data)(mapped(value, change) for value in data)
    return data


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """On the device. A copy from memory that is not pinned waits for all that the device has still
    to do; one more copy on the host is faster than that."""
    pins = device.type == "cuda" and tensor.device.type == "cpu" and tensor.layout == torch.strided
    return (tensor.pin_memory() if pins else tensor).to(device, non_blocking=True)
