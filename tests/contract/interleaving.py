"""Doing something at the one moment between two steps of somebody else, every time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def after_first(owner: Any, name: str, deed: Callable[[], object]) -> Iterator[None]:
    """When `owner.name` has answered for the first time, and before its caller knows, `deed` is
    done. What answers later (kazoo's requests) is waited for."""
    plain, done = getattr(owner, name), list[bool]()

    def stepping(*arguments: Any, **named: Any) -> Any:
        answer = plain(*arguments, **named)
        if not done:
            done.append(True)
            if hasattr(answer, "rawlink"):
                answer.wait()
            deed()
        return answer

    setattr(owner, name, stepping)
    try:
        yield
    finally:
        setattr(owner, name, plain)
    assert done, f"{name} was not called"


@contextmanager
def before_first(owner: Any, name: str, deed: Callable[[], object]) -> Iterator[None]:
    """Before `owner.name` does anything, for the first time, `deed` is done."""
    plain, done = getattr(owner, name), list[bool]()

    def stepping(*arguments: Any, **named: Any) -> Any:
        if not done:
            done.append(True)
            deed()
        return plain(*arguments, **named)

    setattr(owner, name, stepping)
    try:
        yield
    finally:
        setattr(owner, name, plain)
    assert done, f"{name} was not called"
