"""Very many seeds, on several cores: blocks of seeds are handed to processes, and come back in
order. So at any moment all seeds before one are done, and a run that was cut short goes on there.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.pool import Pool
from typing import Final

from simulation.search import Totals, explore
from simulation.verdict import Kind

# Seeds that a process runs before it reports: some seconds, so that handing over costs nothing and
# little is lost when a run is cut short.
BLOCK_SEEDS: Final = 200


def run_many(
    kind: Kind,
    first: int,
    count: int,
    *,
    jobs: int = 1,
    until_s: float | None = None,
    traced: bool = False,
) -> Generator[Totals, None, None]:
    """The totals so far, of the seeds from `first` on without a gap. Ends early after the monotonic
    time `until_s`, if given. What the caller breaks off is over when the iterator is closed."""
    if jobs == 1:
        yield from explore(kind, first, count, until_s=until_s, traced=traced)
        return
    blocks = [
        (start, min(BLOCK_SEEDS, first + count - start))
        for start in range(first, first + count, BLOCK_SEEDS)
    ]
    totals = Totals()
    with processes(jobs) as pool:
        done = pool.imap(partial(_run_block, kind, traced), blocks)
        for _ in blocks:
            left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            try:
                totals.join(done.next(left_s))
            except multiprocessing.TimeoutError:
                return
            yield totals


@contextmanager
def processes(jobs: int, tasks_each: int | None = None) -> Iterator[Pool]:
    """So many processes, which are killed at the end. They are forked: each has all that is
    imported, and whatever was broken on purpose. Ctrl-C is for the process that hands out; in the
    others it is blocked from their very beginning. If that one is killed, they end too."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forking = multiprocessing.get_context("fork")
        with forking.Pool(jobs, initializer=_begin, maxtasksperchild=tasks_each) as pool:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            yield pool
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin() -> None:
    if hasattr(gc, "freeze"):  # PyPy has no need of it
        gc.freeze()  # what is imported is never garbage
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "it was forked"
    wait([parent.sentinel])
    os._exit(1)


def _run_block(kind: Kind, traced: bool, block: tuple[int, int]) -> Totals:
    *_, totals = explore(kind, *block, traced=traced)
    return totals
