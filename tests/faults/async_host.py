"""Workers of asynchronous trainings, forked from `training_host`: digits, as in the demo.

    {"epochs", "slow": [worker, seconds], "pace": seconds}

What a worker has to say goes to its output as one JSON line, `answer {...}`.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from examples.digits import network, pictures
from holdfast import train


def scenario(options: dict[str, Any]) -> None:
    worker = int(os.environ.get("HOLDFAST_WORKER", "-1"))
    train.launch(lambda run: _main(run, worker, options), settings={"lr": 3e-3})


def _main(run: train.Run, worker: int, options: dict[str, Any]) -> None:
    learn, test = pictures()
    model: nn.Module = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=run.settings.lr, weight_decay=0.01)
    epochs = options.get("epochs", 8)
    # Down to nothing: what is left at the end is what was learned, not the last batch's noise.
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12 * epochs)
    run.track(model=model, optimizer=optimizer, scheduler=scheduler)
    run.clip(1.0)

    @run.every_epoch
    def look(run: train.Run) -> None:
        found = run.evaluate(
            lambda batch: {"right": (model(batch.x).argmax(1) == batch.y).sum()}, test
        )
        run.log("accuracy", found["right"])
        row = {"epoch": run.epoch, "loss": run.metrics["loss"], "accuracy": found["right"]}
        print("look", json.dumps(row), flush=True)

    slow, slow_s = options.get("slow", [-1, 0.0])
    for batch in run.batches(learn, lane_batch=16, epochs=epochs):
        pace_s = slow_s if worker == slow else options.get("pace", 0.0)
        time.sleep(pace_s)  # pause: what a step takes
        run.step(functional.cross_entropy(model(batch.x), batch.y))
    found = run.evaluate(lambda batch: {"right": (model(batch.x).argmax(1) == batch.y).sum()}, test)
    row = {
        "step": run.completed,
        "accuracy": found["right"],
        "digest": train.digest_of(model),
        "seen": run.metrics["accuracy"],
        "computed": run._held.computed,
        "lr": optimizer.param_groups[0]["lr"],
    }
    print("answer", json.dumps(row), flush=True)
