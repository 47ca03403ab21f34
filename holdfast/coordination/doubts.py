"""Which paths must be read again: watches add them, and whoever reads takes them."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import partial

from holdfast.coordination.facts import Facts
from holdfast.coordination.waits import Wake


class Doubts:
    """The doubts of one reader. `wake` is called, on another thread, when a watch adds one."""

    def __init__(self, facts: Facts, wake: Wake) -> None:
        self._facts = facts
        self._wake = wake
        self._wakes: dict[str, Wake] = {}
        self._lock = threading.Lock()
        self._paths: set[str] = set()

    def watch(self, path: str) -> Wake:
        """What a read of `path` is given, to hear of its next change."""
        return self._wakes.setdefault(path, partial(self.mark, path))

    def add(self, *paths: str) -> None:
        """Read these again, too; nobody is woken."""
        with self._lock:
            self._paths.update(paths)

    def mark(self, path: str) -> None:
        """Read this again, and soon: as a watch says it."""
        self.add(path)
        self._wake()

    def begin(self, paths: Iterable[str]) -> None:
        """Read these again, and nothing else: all that was read is forgotten."""
        with self._lock:
            self._paths = set(paths)

    def take(self) -> set[str]:
        """All of them; whoever cannot read one adds it again."""
        with self._lock:
            taken, self._paths = self._paths, set()
        return taken

    def forget(self, *paths: str) -> None:
        """Nobody waits for changes of these any more."""
        for path in paths:
            wake = self._wakes.pop(path, None)
            if wake is not None:
                self._facts.forget(wake)

    def forget_below(self, top: str) -> None:
        self.forget(*[path for path in self._wakes if path == top or path.startswith(f"{top}/")])

    def close(self) -> None:
        """Nobody is woken any more."""
        self.forget(*list(self._wakes))
