"""What a script does between the sum of a step and its new weights, and in place of the update.

    run.before_update(hook)      gradients are there: change them
    run.update_with(fn)          make the update yourself, with two calls of one optimizer perhaps

Both run on every worker, once a step, with the same gradients and the same random numbers, so all
come to the same weights. A worker that is behind takes the state of those who did it: it never
calls them for that step. So nothing may be asked of all workers in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from holdfast.train.chance import seed_everything, seed_of
from holdfast.wire.errors import Usage

Hook = Callable[[Any], object]


@dataclass(frozen=True)
class Script:
    """The script's part of one update. `instead`: in place of stepping the optimizers."""

    before: tuple[Callable[[], None], ...] = ()
    instead: Callable[[], None] | None = None


class UpdateHooks:
    """What was asked for, in the order in which it was asked."""

    def __init__(self) -> None:
        self._before: list[tuple[Hook, Any]] = []
        self._instead: tuple[Hook, Any] | None = None
        self._running = ""

    def __bool__(self) -> bool:
        return bool(self._before or self._instead)

    @property
    def replaces_update(self) -> bool:
        return self._instead is not None

    def add_before(self, hook: Hook, run: Any) -> None:
        self._before.append((hook, run))

    def replace_update(self, fn: Hook, run: Any) -> None:
        self._instead = fn, run

    def at(self, seed: int, step: int) -> Script:
        """What there is to do in the update that follows this step."""
        before = tuple(
            self._call("before_update", each, seed_of(seed, "before_update", step, number))
            for number, each in enumerate(self._before)
        )
        seeded = seed_of(seed, "update_with", step)
        instead = self._call("update_with", self._instead, seeded) if self._instead else None
        return Script(before, instead)

    def refuse_question(self) -> None:
        """Something that all workers do together was asked for."""
        if self._running:
            raise Usage(
                f"something for all workers was asked for in run.{self._running}",
                why="a worker that is behind takes over the finished step, and would never answer",
                fix="do it in a hook: run.every_epoch(hook) or run.every(steps, hook)",
            )

    def _call(self, name: str, asked: tuple[Hook, Any], seed: int) -> Callable[[], None]:
        hook, run = asked

        def call() -> None:
            seed_everything(seed)
            with self._marked(name):
                hook(run)

        return call

    @contextmanager
    def _marked(self, name: str) -> Iterator[None]:
        self._running = name
        try:
            yield
        finally:
            self._running = ""
