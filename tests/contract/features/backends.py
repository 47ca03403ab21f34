"""What a test knows of an engine behind `OnlineStore`, and which kinds of it there are.

A module beside this one (`valkey_backend`, `cassandra_backend`) has `KINDS`, a tuple of
`BackendKind`; `conftest` runs every test of the suite over each of them. One server (or ring) of a
kind is started for all tests of a process; a test makes tables of its own in it, and leaves it
running.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from holdfast.features.online.store import OnlineStore


class Backend(Protocol):
    """An engine that runs, and that a test may disturb."""

    @property
    def name(self) -> str: ...

    @property
    def strong(self) -> bool:
        """Whether it takes strong tables, and so has what it acknowledged after any kill."""

    def open(self) -> OnlineStore:
        """A store of its own for the caller, who closes it."""

    def kill(self) -> None:
        """SIGKILL to every process of it, at once."""

    def start(self) -> None:
        """Start what was killed, over what it left; returns when it answers again."""

    def pause(self) -> None:
        """SIGSTOP: it takes connections, and answers nothing."""

    def resume(self) -> None: ...


@dataclass(frozen=True, slots=True)
class BackendKind:
    """How one is started, in a folder of its own. `missing` says why it cannot be here, with the
    fix, or ""; `is_part`: it lies beside the checkout, and nobody can install it; `large`: only
    `make test-engines` runs it."""

    name: str
    run: Callable[[Path], AbstractContextManager[Backend]]
    missing: Callable[[], str]
    is_part: bool = False
    large: bool = False
