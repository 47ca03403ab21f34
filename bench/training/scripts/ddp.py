"""Plain DDP over Gloo under torchrun, with a checkpoint every so many steps to go on from."""

from __future__ import annotations

import argparse
import hashlib
import os
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import default_collate

from bench.training import work


def indices(step: int, rank: int, size: int, batch: int) -> list[int]:
    """The samples of this rank: the epoch's shuffle, cut like a distributed sampler does."""
    steps = work.SAMPLES // (batch * size)
    epoch, index = divmod(step, steps)
    begin = (index * size + rank) * batch
    return order_of(epoch)[begin : begin + batch]


@cache
def order_of(epoch: int) -> list[int]:
    chance = torch.Generator().manual_seed(epoch)
    found: list[int] = torch.randperm(work.SAMPLES, generator=chance).tolist()
    return found


def digest_of(model: nn.Module) -> str:
    found = hashlib.sha256()
    for _name, value in sorted(model.state_dict().items()):
        found.update(value.numpy().tobytes())
    return f"sha256:{found.hexdigest()}"


def save(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    unfinished = path.with_suffix(".tmp")
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, unfinished)
    unfinished.rename(path)


def main(given: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(work.SEED)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    notes = work.Notes(given.notes)
    model = work.network(given.parameters)
    optimizer = torch.optim.AdamW(model.parameters(), lr=work.LEARNING_RATE)
    step, path = 0, given.notes / "checkpoint.pt"
    if given.save_every and path.exists():
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    wrapped = DistributedDataParallel(model)
    data = work.samples()
    try:
        while step < given.steps and step != notes.ends_at():
            if given.block and step % given.block == 0:
                notes.gate(step // given.block)
            # Sample by sample, as a DataLoader without processes takes them.
            x, y = default_collate([data[each] for each in indices(step, rank, size, given.batch)])
            optimizer.zero_grad()
            loss = functional.cross_entropy(wrapped(x), y)
            loss.backward()
            optimizer.step()
            step += 1
            notes.step(step, given.batch * size)
            if given.save_every and rank == 0 and step % given.save_every == 0:
                save(path, step, model, optimizer)
    except RuntimeError:
        notes.noticed()
        raise
    notes.last(digest_of(model))
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    words = work.options(__doc__)
    words.add_argument("--save-every", type=int, default=0, help="steps; 0: never")
    main(words.parse_args())
