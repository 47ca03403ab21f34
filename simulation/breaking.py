"""What a deliberate breakage is: functions that are replaced in memory, for as long as it is on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

Patch = tuple[Any, str, Callable[[Any], Any]]  # where, what, the new one made of the old one


@dataclass(frozen=True, slots=True)
class Mutant:
    """A breakage: what it is, and what it replaces."""

    name: str
    what: str
    patches: tuple[Patch, ...]

    @contextmanager
    def on(self) -> Iterator[None]:
        with ExitStack() as stack:
            for where, what, make in self.patches:
                old = getattr(where, what)
                setattr(where, what, make(old))
                stack.callback(setattr, where, what, old)
            yield


def never(_: Any) -> Any:
    """A function that does nothing and gives None."""
    return lambda *arguments, **named: None


def always(_: Any) -> Any:
    """A function that says yes."""
    return lambda *arguments, **named: True
