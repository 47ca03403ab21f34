"""Values that the lanes of a step have: their loss, and what was logged. They lie on a device, and
reading them waits for it, so they are read together, and as late as somebody looks at them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import torch

from holdfast.train.sums import step_records


class Values:
    """Those of one step."""

    def __init__(self) -> None:
        self._found: list[tuple[step_records.LaneRecord, str, torch.Tensor, int]] = []

    def add(
        self,
        record: step_records.LaneRecord,
        name: str,
        value: torch.Tensor,
        count: int,
        *,
        own: bool = False,
    ) -> None:
        """A lane's value, a mean over so many samples. `own`: nobody else writes to it."""
        plain = value.detach()
        # A copy: what a captured graph gives is overwritten by the next lane.
        kept = plain if own or plain.device.type == "cpu" else plain.clone()
        self._found.append((record, name, kept, count))

    def settle(self) -> None:
        """Read them, and give them to their lanes. On a device this waits."""
        values = [value for _, _, value, _ in self._found]
        if _are_alike(values):
            numbers = torch.stack(values).tolist()  # of one shape: numbers, or lists of one each
        else:
            numbers = [float(value) for value in values]
        self._give(numbers)

    def means(self, step: step_records.StepRecord) -> Late:
        """The step's means. What is not read yet begins its way from the device now."""
        fetch = _fetched([value for _, _, value, _ in self._found])

        def read() -> dict[str, float]:
            self._give(fetch())
            return step.means()

        return Late(read)

    def _give(self, numbers: list[Any]) -> None:
        for (record, name, _, count), number in zip(self._found, numbers, strict=True):
            record.add(name, _single(number), count)
        self._found.clear()


class Late(MutableMapping[str, float]):
    """Numbers by name, read when somebody looks at them for the first time."""

    def __init__(self, read: Callable[[], dict[str, float]]) -> None:
        self._reads: list[Callable[[], dict[str, float]]] = [read]
        self._numbers: dict[str, float] = {}

    def _all(self) -> dict[str, float]:
        reads, self._reads = self._reads, []
        for read in reads:
            self._numbers.update(read())
        return self._numbers

    def __getitem__(self, name: str) -> float:
        return self._all()[name]

    def __setitem__(self, name: str, value: float | torch.Tensor) -> None:
        """A tensor is read later, too."""
        if isinstance(value, torch.Tensor):
            fetch = _fetched([value.detach()])
            self._reads.append(lambda: {name: fetch()[0]})
        else:
            self._all()[name] = value

    def __delitem__(self, name: str) -> None:
        del self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __bool__(self) -> bool:
        return True  # every step has a loss; asking whether there is something reads nothing

    def __repr__(self) -> str:
        return repr(self._all())


def _are_alike(values: list[torch.Tensor]) -> bool:
    return len({(value.device, value.dtype, value.shape) for value in values}) == 1


def _fetched(values: list[torch.Tensor]) -> Callable[[], list[float]]:
    """A function that gives the numbers. Those on one device are sent to the host now; it waits for
    that copy alone, not for what the device was given afterwards."""
    if not values:
        return list
    devices = {value.device for value in values}
    if len(devices) != 1 or next(iter(devices)).type != "cuda":
        return lambda: [float(value) for value in values]
    if not _are_alike(values):
        # Exact: what is narrower than a double is one.
        values = [value.reshape(()).double() for value in values]
    together = torch.stack(values)
    host = torch.empty(together.shape, dtype=together.dtype, pin_memory=True)
    host.copy_(together, non_blocking=True)
    there = torch.cuda.Event()
    there.record(torch.cuda.current_stream(together.device))

    def numbers() -> list[float]:
        there.synchronize()
        return [_single(number) for number in host.tolist()]

    return numbers


def _single(number: Any) -> float:
    """The one number in lists of one."""
    while isinstance(number, list):
        (number,) = number
    return float(number)
