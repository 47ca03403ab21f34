"""How much disk workers use: what their folders hold, looked at now and then.

A worker that was given a bound writes below its own folder: its copy of the code, its working
folder, its TMPDIR and what it sees as /tmp. What counts is what the file system has allotted, so a
file with holes counts as what is written of it, and one with several names counts once. A look is
made in a thread of the agent, never in the worker; the next one is the later the longer it took.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from holdfast.agent.events import DiskUsed, Event, Key
from holdfast.system.tasks import Died, Tasks

# How often an agent looks how much disk a worker's folder holds. It is a walk over its files:
# of a hundred thousand it takes some tenths of a second, and then is made the later again.
DISK_LOOK_S: Final = 2.0
# Such looks take at most this part of a core, all workers of an agent together.
DISK_LOOK_PART: Final = 0.02
# Files that one look counts. Whoever has more is held to what these take.
DISK_LOOK_FILES_MAX: Final = 200_000

_BLOCK_BYTES: Final = 512  # what st_blocks counts in, whatever the file system's own blocks are


def held_bytes(top: Path, files_max: int = DISK_LOOK_FILES_MAX) -> int:
    """What a folder holds, of its own file system; of the first `files_max` files and folders. What
    goes away meanwhile, or may not be read, is not counted. May block."""
    held, left = 0, files_max
    seen: set[int] = set()
    try:
        device = top.lstat().st_dev
    except OSError:
        return 0
    todo = [str(top)]
    while todo and left > 0:
        try:
            with os.scandir(todo.pop()) as entries:
                for entry in entries:
                    left -= 1
                    if left < 0:
                        break
                    found = _looked_at(entry)
                    if found is None or found.st_dev != device:
                        continue
                    if found.st_nlink > 1 and not entry.is_dir(follow_symlinks=False):
                        if found.st_ino in seen:
                            continue
                        seen.add(found.st_ino)
                    held += found.st_blocks * _BLOCK_BYTES
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
        except OSError:
            continue
    return held


def _looked_at(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat(follow_symlinks=False)
    except OSError:
        return None


class DiskWatch:
    """Looks at the folders of one agent's workers. Used from its loop alone; events go to `tell`,
    and `died` hears of a task that has ended unexpectedly."""

    def __init__(
        self, folder: Callable[[Key], Path], tell: Callable[[Event], None], died: Died
    ) -> None:
        self._folder = folder
        self._tell = tell
        self._watching: dict[Key, asyncio.Task[None]] = {}
        self._tasks = Tasks(died)
        self._one_at_a_time = asyncio.Lock()

    def begin(self, key: Key, bytes_max: int) -> None:
        """Look at this worker's folder from now on. Twice is once."""
        if key not in self._watching:
            look = self._keep_looking(key, bytes_max)
            self._watching[key] = self._tasks.start(look, f"disk of {key}")

    def end(self, key: Key) -> None:
        """The worker has ended."""
        task = self._watching.pop(key, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """Look at nobody any more; return when no task of it runs."""
        self._watching.clear()
        await self._tasks.close()

    async def _keep_looking(self, key: Key, bytes_max: int) -> None:
        while True:
            async with self._one_at_a_time:
                since_s = time.monotonic()
                held = await asyncio.to_thread(held_bytes, self._folder(key))
                took_s = time.monotonic() - since_s
            if held > bytes_max:
                self._tell(DiskUsed(key, held))
            # Those who share the part of a core wait for each other, and longer for that.
            shared = len(self._watching) or 1
            await asyncio.sleep(max(DISK_LOOK_S, took_s * shared / DISK_LOOK_PART))
