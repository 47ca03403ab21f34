"""How our processes begin: with room for as many peers as the system lets them have."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
from holdfast.system import process
from holdfast.system.process import FILES_WANTED
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
process.main(lambda _words: 0)
print(*resource.getrlimit(resource.RLIMIT_NOFILE), FILES_WANTED)
"""


def _limits(soft: int, hard: int) -> tuple[int, int, int]:
    script = SCRIPT.format(soft=soft, hard=hard)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    found_soft, found_hard, wanted = map(int, done.stdout.split())
    return found_soft, found_hard, wanted


@pytest.mark.parametrize(("soft", "hard"), [(256, 300), (256, 256), (300, 4_000)])
def test_a_process_takes_as_many_files_as_it_may_and_no_more_than_it_wants(
    soft: int, hard: int
) -> None:
    found, kept, wanted = _limits(soft, hard)
    assert found == min(hard, wanted)
    assert kept == hard, "what others may still raise is left as it is"


ENDING = """
import os, signal, threading
from holdfast.system import process

lock, ended = threading.Lock(), threading.Event()

def end():
    with lock:
        ended.set()

process.on_termination(end)
with lock:
    for number in 500 * (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)  # heard here, by who holds the lock
print(ended.wait(60))
"""


def test_a_process_that_is_told_to_end_does_not_wait_for_a_lock_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDING], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "True\n"
