"""Getting the samples of tickets: at once, or ahead of time by loader processes.

What a data set draws at random (an augmentation) is seeded by the ticket, so it is the same
whoever fetches it: this process, a loader process, another worker after this one died.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator, Sized
from functools import cached_property
from typing import Any, Protocol

import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    TensorDataset,
    default_collate,
    get_worker_info,
)
from torch.utils.data._utils import worker as loading

from holdfast.train.chance import drawn, seed_everything
from holdfast.train.data.loaders import die_with
from holdfast.train.data.order import Ticket

Collate = Callable[[list[Any]], Any]


class Samples(Sized, Protocol):
    """A map-style data set: a length, and a sample for each number below it."""

    def __getitem__(self, index: int, /) -> Any: ...


def fetch(data: Samples, ticket: Ticket) -> list[Any]:
    """The ticket's samples."""
    seed_everything(ticket.seed)
    if many := getattr(data, "__getitems__", None):
        return list(many(list(ticket.samples)))
    return [data[sample] for sample in ticket.samples]


class Fetcher:
    """Gives the collated samples of tickets, in whatever order they are asked for.

    With loader processes it fetches ahead what `upcoming` says; a ticket that was not foreseen (the
    view has changed) makes it begin anew from there.
    """

    def __init__(
        self,
        data: Samples,
        upcoming: Callable[[Ticket], Iterator[Ticket]],
        *,
        loader_workers: int = 0,
        collate: Collate | None = None,
        pin: bool = False,
    ) -> None:
        self._data = data
        self._collate = collate or default_collate
        self._upcoming = upcoming
        self._pin = pin
        self._ahead: Iterator[tuple[Ticket, Any]] = iter(())
        self._expected: Iterator[Ticket] = iter(())
        self._plan = _FetchPlan()
        self._loader: DataLoader[Any] | None = None
        if loader_workers:
            self._loader = DataLoader(
                _TicketDataset(data),
                batch_sampler=self._plan,
                num_workers=loader_workers,
                collate_fn=_Pair(self._collate),
                worker_init_fn=_Begin(),
                persistent_workers=True,
                pin_memory=pin,
            )

    def get(self, ticket: Ticket) -> Any:
        if self._loader is None:
            return self._whole(ticket) or self._collate(fetch(self._data, ticket))
        if next(self._expected, None) != ticket:
            self._plan.tickets = lambda: self._upcoming(ticket)
            self._expected = self._upcoming(ticket)
            next(self._expected)
            self._ahead = iter(self._loader)
        found, data = next(self._ahead)
        assert found == ticket, f"{found} was fetched where {ticket} was due"
        return data

    @property
    def draws(self) -> bool:
        """Whether fetching may draw random numbers: taking rows of tensors does not."""
        return not self._has_rows

    @cached_property
    def _has_rows(self) -> bool:
        """Whether samples are rows of tensors, and are put together as ever."""
        if type(self._data) is not TensorDataset or self._collate is not default_collate:
            return False
        return all(tensor.layout == torch.strided for tensor in self._data.tensors)

    def _whole(self, ticket: Ticket) -> list[torch.Tensor] | None:
        """The batch in one go, where the samples are rows of tensors: the same values as one by
        one, without a call for each. For a GPU in memory from which it is copied while we go on."""
        if not self._has_rows:
            return None
        assert isinstance(self._data, TensorDataset)
        rows = torch.frombuffer(array("q", ticket.samples), dtype=torch.int64)
        return [self._rows(tensor, rows) for tensor in self._data.tensors]

    def _rows(self, tensor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        if not self._pin or tensor.device.type != "cpu" or tensor.requires_grad:
            return tensor.index_select(0, rows.to(tensor.device))
        shape = (len(rows), *tensor.shape[1:])
        rows_out = torch.empty(shape, dtype=tensor.dtype, pin_memory=True)
        return torch.index_select(tensor, 0, rows, out=rows_out)

    def drawn_twice(self, ticket: Ticket) -> tuple[bytes, bytes] | tuple[()]:
        """Where the generators stand after each of two fetches in this process. Nothing if the data
        set answers only in loader processes; it is they who have to fetch."""
        try:
            fetch(self._data, ticket)
            first = drawn()
            fetch(self._data, ticket)
        except Exception:  # whatever a user's data set raises where it does not expect to be asked
            return ()
        return first, drawn()

    def close(self) -> None:
        """End the loader processes: they go with the last that refers to them."""
        self._ahead, self._expected, self._loader = iter(()), iter(()), None


class _FetchPlan:
    """What the loader processes fetch next; what torch takes for lists of indices are tickets."""

    def __init__(self) -> None:
        self.tickets: Callable[[], Iterator[Any]] = lambda: iter(())

    def __iter__(self) -> Iterator[Any]:
        return self.tickets()


class _TicketDataset(Dataset[Any]):
    """A data set whose "indices" are tickets: torch hands a whole one to `__getitems__`."""

    def __init__(self, data: Samples) -> None:
        self._data = data

    def __getitem__(self, ticket: Ticket) -> Any:
        return self.__getitems__(ticket)

    def __getitems__(self, ticket: Ticket) -> tuple[Ticket, list[Any]]:
        return ticket, fetch(self._data, ticket)


class _Pair:
    def __init__(self, collate: Collate) -> None:
        self._collate = collate

    def __call__(self, fetched: Any) -> tuple[Ticket, Any]:
        ticket, samples = fetched
        return ticket, self._collate(samples)


class _Begin:
    """Called in a new loader process: it dies with the worker, and has as many threads as the
    worker itself would use for one sample. A data set that asks which loader process it is in hears
    the same in each: who fetches a sample depends on the workers and on their deaths."""

    def __init__(self) -> None:
        self._worker = os.getpid()

    def __call__(self, _number: int) -> None:
        die_with(self._worker)
        torch.set_num_threads(1)
        info = get_worker_info()
        assert info is not None
        loading._worker_info = loading.WorkerInfo(id=0, num_workers=1, seed=0, dataset=info.dataset)
