"""torchft: one replica group, under a torchrun of its own, with torchft's DDP and optimizer."""

from __future__ import annotations

import argparse
import os
from datetime import timedelta
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import default_collate
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

from bench.training import work


def main(given: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(work.SEED)
    notes = work.Notes(given.notes)
    model = work.network(given.parameters)
    inner = torch.optim.AdamW(model.parameters(), lr=work.LEARNING_RATE)

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": inner.state_dict()}

    def take(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=given.group_s)),
        load_state_dict=take,
        state_dict=state,
        min_replica_size=1,
        timeout=timedelta(seconds=given.manager_s),
        replica_id=f"bench_{os.environ['REPLICA_GROUP_ID']}",
    )
    wrapped = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, inner)
    data = work.samples()
    chance = torch.Generator().manual_seed(int(os.environ["REPLICA_GROUP_ID"]))
    while manager.current_step() < given.steps and manager.current_step() != notes.ends_at():
        before = manager.current_step()
        chosen = torch.randint(work.SAMPLES, (given.batch,), generator=chance).tolist()
        x, y = default_collate([data[each] for each in chosen])
        optimizer.zero_grad()
        functional.cross_entropy(wrapped(x), y).backward()
        optimizer.step()
        if manager.current_step() > before:
            notes.step(manager.current_step(), given.batch * manager.num_participants())
        else:
            notes.noticed()
    notes.last("sha256:-")
    manager.shutdown(wait=False)


if __name__ == "__main__":
    words = work.options(__doc__)
    words.add_argument("--group-s", type=float, default=5.0)
    words.add_argument("--manager-s", type=float, default=60.0)
    main(words.parse_args())
