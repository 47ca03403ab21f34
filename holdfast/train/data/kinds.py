"""What may be given as data, and what to do with what may not. Refused before the first step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from holdfast.train.data.sharded import Sharded
from holdfast.wire.errors import Usage


def in_order(data: Any) -> bool:
    """Whether its lanes are read from a position on, not asked for by number."""
    if isinstance(data, Sharded):
        return True
    # torch gives even an IterableDataset a `__getitem__`, which only fails.
    numbered = hasattr(data, "__getitem__") and not isinstance(data, IterableDataset)
    return callable(getattr(data, "start", None)) and not numbered


def check(data: Any, *, sampler: Any = None, batch_sampler: Any = None) -> None:
    """`Usage` with what to give instead."""
    if isinstance(data, DataLoader):
        raise _loader(data)
    if isinstance(data, DistributedSampler):
        raise Usage(
            "a DistributedSampler is no data set",
            why="it divides numbers over processes by rank; here lanes do that",
            fix="give the data set itself: run.batches(dataset, lane_batch=...)",
        )
    if isinstance(data, Iterator):
        raise Usage(
            f"a {type(data).__name__} is no data set",
            why="it can be read once, from its beginning: after a death nobody could go back to "
            "the samples that were lost",
            fix="give what it reads from: a data set with __len__ and __getitem__, or "
            "train.Sharded(files, read=...) with the generator function as read",
        )
    if in_order(data):
        if sampler is not None or batch_sampler is not None:
            raise Usage(
                f"a sampler for a {type(data).__name__}",
                why="it is read in its own order, so samples cannot be asked for by number",
                fix="leave the sampler out, or give a map-style data set",
            )
        return
    if isinstance(data, IterableDataset):
        raise Usage(
            f"the IterableDataset {type(data).__name__} cannot be entered at a position",
            why="a lane that moves to another worker must go on there at the sample where it was",
            fix="give it a method start(self, lane, lanes, epoch, at) that returns an iterator "
            "over that lane's samples from number `at` on; or use train.Sharded(files, read=...)",
        )
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise Usage(
            f"a {type(data).__name__} is no data set",
            why="it has no length, or its samples cannot be asked for by number",
            fix="give a map-style data set, or train.Sharded(files, read=...)",
        )
    if sampler is not None and batch_sampler is not None:
        raise Usage("sampler= and batch_sampler= together", fix="give one of them")


def _loader(loader: DataLoader[Any]) -> Usage:
    """The options of `run.batches` that do what this loader does."""
    options = _batches(loader)
    if loader.num_workers:
        options.append(f"loader_workers={loader.num_workers}")
    collate = loader.collate_fn
    if collate is not None and collate is not default_collate and loader.batch_size is not None:
        named = getattr(collate, "__qualname__", "").isidentifier()
        options.append(f"collate={collate.__qualname__ if named else 'loader.collate_fn'}")
    return Usage(
        "a DataLoader is no data set",
        why="it has an order and processes of its own; here each lane has its place in the data, "
        "whichever worker holds it",
        fix="give its dataset, and these options: run.batches(loader.dataset, "
        f"{', '.join(options)})",
    )


def _batches(loader: DataLoader[Any]) -> list[str]:
    own = loader.batch_sampler
    if own is not None and type(own) is not BatchSampler:
        return ["batch_sampler=lambda epoch, seed: [...]"]
    if loader.batch_size is None:
        options = ["lane_batch=1", "collate=lambda rows: rows[0]"]
    else:
        options = [f"lane_batch={loader.batch_size}"]
    sampler = loader.sampler
    if isinstance(sampler, DistributedSampler):
        options.append(f"shuffle={sampler.shuffle}")
    elif isinstance(sampler, RandomSampler) and not sampler.replacement:
        options.append("shuffle=True")
    elif isinstance(sampler, SequentialSampler) or isinstance(loader.dataset, IterableDataset):
        if not isinstance(loader.dataset, IterableDataset):
            options.append("shuffle=False")
    else:
        options.append("sampler=loader.sampler")
    if loader.drop_last:
        options.append("drop_last=True")
    return options
