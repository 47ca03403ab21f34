"""`make lint` finds what is started without an owner, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lint.owners import findings, main

BAD = {
    "a thread": "import threading\nthreading.Thread(target=print).start()",
    "a thread that is kept": "import threading\nx = threading.Thread(target=print)",
    "a thread by another name": "from threading import Thread as T\nT(target=print).start()",
    "a thread of a module by another name": "import threading as t\nt.Thread(target=print).start()",
    "a thread by its class": "import threading\nclass Mine(threading.Thread): ...",
    "a timer": "import threading\nthreading.Timer(1, print).start()",
    "a thread of the lowest kind": "import _thread\n_thread.start_new_thread(print, ())",
    "a task": "async def f(): await asyncio.create_task(g())",
    "a task of a loop": "loop.create_task(g())",
    "a future of a coroutine": "x = asyncio.ensure_future(g())",
    "a call into a loop": "asyncio.run_coroutine_threadsafe(g(), loop)",
    "work for a pool": "with ThreadPoolExecutor(1) as pool:\n    pool.submit(print)",
    "work for a pool that is kept": "self._pool = ThreadPoolExecutor(1)\nself._pool.submit(print)",
    "work for a pool that is given": "def f(pool: Executor) -> None:\n    pool.submit(print)",
    "work for a pool into nothing": "pool: Executor | None = p()\n_ = pool.submit(print)",
    "work for the loop's pool": "loop.run_in_executor(None, print)",
    "many at a time": "asyncio.gather(a(), b())",
    "an owned thread that nobody can join": "start_thread(print, 'p')",
    "an owned task that nobody can await": "start_task(g(), 'g')",
}

GOOD = """
import threading
self._thread: OwnedThread | None = start_thread(run, "run")
start_thread(run, "run", lasts="it ends the process")
task = start_task(g(), "g")
plane.submit(spec)
pool = ThreadPoolExecutor(1)
future = pool.submit(print)
owned(pool.submit(print), died)
lock = threading.Lock()
async def f():
    await asyncio.gather(a(), b())
    await asyncio.to_thread(print)
    await loop.run_in_executor(None, print)
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(g(), loop))
"""


@pytest.mark.parametrize("what", BAD)
def test_what_is_started_without_an_owner_is_refused(what: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(BAD[what])
    assert main([str(tmp_path)]) == 1
    last = len(BAD[what].splitlines())
    assert findings(bad, BAD[what])[-1].line == last


def test_what_has_an_owner_is_let_be(tmp_path: Path) -> None:
    assert findings(tmp_path, GOOD) == []
