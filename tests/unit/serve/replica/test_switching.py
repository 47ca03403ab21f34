"""How often Python changes threads. It is one setting of a process: each test has its own."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import asyncio, sys, time
import numpy as np
from holdfast.serve.records import Limits
from holdfast.serve.replica.batching import Batcher, BatchPace
from holdfast.serve.replica.batching import SWITCH_INTERVAL_S

before = sys.getswitchinterval()

def often():
    return abs(sys.getswitchinterval() - SWITCH_INTERVAL_S) < 1e-6

def made(pace):
    return Batcher("m@1", dict, Limits(), batches=True, pace=pace)

async def main():
    inputs = {"x": np.zeros((1, 1))}
    await made(BatchPace.SHORT).compute(inputs)
    print(often())
    first, second = made(BatchPace.LONG), made(BatchPace.LONG)
    await first.compute(inputs)
    await second.compute(inputs)
    print(often())
    await first.close(30)
    await asyncio.sleep(0.2)
    print(often())
    await second.close(30)
    until = time.monotonic() + 60
    while often() and time.monotonic() < until:
        await asyncio.sleep(0.01)
    print(sys.getswitchinterval() == before)

asyncio.run(main())
"""


def test_python_changes_threads_often_only_while_some_version_computes_in_one() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=100, check=True
    )
    assert ran.stdout.split() == ["False", "True", "True", "True"]
