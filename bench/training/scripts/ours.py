"""Ours: `holdfast run ours.py --workers N --lanes N -- --notes DIR`, or alone with plain python."""

from __future__ import annotations

import argparse
import logging

import torch
from torch.nn import functional

from bench.training import work
from holdfast import train


class _Listener(logging.Handler):
    """Hears the member say that its mesh is broken."""

    def __init__(self, notes: work.Notes) -> None:
        super().__init__()
        self._notes = notes

    def emit(self, record: logging.LogRecord) -> None:
        if str(record.msg).startswith("meets again"):
            self._notes.noticed()


def listen(notes: work.Notes) -> None:
    logger = logging.getLogger("holdfast.train.members.member")
    logger.setLevel(logging.INFO)
    logger.addHandler(_Listener(notes))


def train_it(run: train.Run, given: argparse.Namespace) -> None:
    notes = work.Notes(given.notes)
    listen(notes)
    model = work.network(given.parameters)
    optimizer = torch.optim.AdamW(model.parameters(), lr=work.LEARNING_RATE)
    run.track(model=model, optimizer=optimizer)
    count = given.batch * run.lanes

    def completed(run: train.Run) -> None:
        step = run.completed
        notes.step(step, count)
        if step >= given.steps or step == notes.ends_at():
            run.stop_early()
        elif given.block and step % given.block == 0:
            notes.gate(step // given.block)

    run.every(1, completed)
    if given.block:
        notes.gate(0)
    for batch in run.batches(work.samples(), lane_batch=given.batch, epochs=None, drop_last=True):
        run.step(functional.cross_entropy(model(batch.x), batch.y))
    notes.last(train.digest_of(model))


if __name__ == "__main__":
    words = work.options(__doc__)
    words.add_argument("--lanes", type=int, default=2)
    chosen = words.parse_args()
    train.launch(lambda run: train_it(run, chosen), lanes=chosen.lanes, seed=work.SEED)
