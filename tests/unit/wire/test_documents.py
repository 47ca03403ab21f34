"""Documents are read by many threads."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Kinds that nobody has read before, each by four threads at once.
PROGRAM = """
import dataclasses, sys, threading
from holdfast.wire import documents
sys.setswitchinterval(1e-6)
PLAIN = {"format": 1, "inner": {"x0": 1}}
for _ in range(100):
    fields = [(f"x{number}", "int", 0) for number in range(20)]
    inner = dataclasses.make_dataclass("Inner", fields)
    kind = dataclasses.make_dataclass("Kind", [("inner", inner), ("last", int, 0)])
    together = threading.Barrier(4)
    found = []
    def look():
        together.wait()
        found.append(HOW)
    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert [one.inner.x0 for one in found] == [1, 1, 1, 1]
"""
WAYS = {
    "bytes": 'documents.from_bytes("/x", kind, documents.encoded(PLAIN))',
    "plain": 'documents.from_document("/x", kind, PLAIN)',
}


@pytest.mark.parametrize("way", WAYS)
def test_threads_that_read_a_kind_for_the_first_time_at_once_do_not_crash(way: str) -> None:
    program = PROGRAM.replace("HOW", WAYS[way])
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
