"""Hooks that read what the loop's body writes.

A body may gather things in a list for a hook to print. But each worker gathers only what its own
lanes gave, so a hook that changes the model by it changes each worker's model otherwise; and where
one worker is left, nobody is there to notice. While a batch is given twice (see `rehearsal`) the
variables that hooks read are compared, before the body and behind it. Hooks that read what has
changed are watched when they run: they may show it, but not train by it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from holdfast.train.hook_writes import HookWrites
from holdfast.train.states.tracked import Tracked
from holdfast.train.variables import variables_of
from holdfast.wire.errors import Usage

_PLAIN: Final = (int, float, complex, str, bytes, bool, type(None))
_ELEMENTS_MAX: Final = 1_000  # of a container that are looked at, from its end
_DEPTH_MAX: Final = 2  # a metric object's list is seen, a list within that is not

Hook = Callable[[Any], None]


class HookReads:
    """What the hooks of a loop read, and which of that its body writes."""

    def __init__(self, hooks: Sequence[Hook] = ()) -> None:
        self._hooks = list(hooks)
        self._before: list[dict[str, Any]] = []
        self._written: dict[int, str] = {}  # by the hook's number, a variable
        self.writes: HookWrites | None = None  # what a hook must not change, where others may join

    def before(self) -> None:
        """The body is about to run."""
        self._before = [_read_by(hook) for hook in self._hooks]

    def after(self) -> None:
        """The body has run."""
        for number, (hook, before) in enumerate(zip(self._hooks, self._before, strict=True)):
            now = _read_by(hook)
            changed = [name for name in before if before[name] != now.get(name)]
            if changed:
                self._written.setdefault(number, changed[0])
        self._before = []

    def run(self, number: int, hook: Hook, given: Any, tracked: Tracked) -> None:
        """Run the hook. Raise `Usage` if it has trained by what a body wrote."""
        variable = self._written.get(number)
        if variable is None:
            self._call(hook, given)
            return
        before = _versions(tracked)
        self._call(hook, given)
        if _versions(tracked) != before:
            raise Usage(
                f"the hook {getattr(hook, '__qualname__', hook)} changes what is trained, and it "
                f"reads {variable}, which the loop's body changes",
                why="each worker has in it only what its own lanes gave",
                fix="gather it with run.log(name, value), whose mean over all lanes is in "
                "run.metrics, or compute it in the hook with run.evaluate",
            )

    def _call(self, hook: Hook, given: Any) -> None:
        if self.writes is None:
            hook(given)
        else:
            self.writes.run(hook, given, _print)


def _versions(tracked: Tracked) -> list[int]:
    """How often each tensor of the models was changed."""
    models = tracked.models.values()
    return [each._version for model in models for each in (*model.parameters(), *model.buffers())]


def _read_by(hook: Any, depth: int = 0) -> dict[str, Any]:
    """The variables that the function names, and a print of each."""
    if isinstance(hook, partial):
        hook = hook.func
    if isinstance(hook, MethodType):
        return {"self": _print(hook.__self__), **_read_by(hook.__func__, depth)}
    if not isinstance(hook, FunctionType):
        return {}
    found: dict[str, Any] = {}
    for name, value in variables_of(hook):
        if isinstance(value, FunctionType) and depth < _DEPTH_MAX:
            inner = _read_by(value, depth + 1)
            found.update({f"{name}.{key}": each for key, each in inner.items()})
        else:
            found[name] = _print(value)
    return found


def _print(value: Any, depth: int = 0) -> Any:
    """What is compared of a variable. Of what travels with the state, nothing."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, torch.Tensor):
        return id(value), value._version
    if isinstance(value, nn.Module | Optimizer | ModuleType | type) or callable(value):
        return None
    if type(value).__module__.startswith("holdfast."):
        return None  # a run, whose counts are the same everywhere
    if depth >= _DEPTH_MAX:
        return len(value) if isinstance(value, list | deque | dict | set) else None
    if isinstance(value, list | deque | tuple):
        last = list(value)[-_ELEMENTS_MAX:]
        return len(value), [_print(each, depth + 1) for each in last]
    if isinstance(value, Mapping):
        pairs = list(value.items())[-_ELEMENTS_MAX:]
        return len(value), [(_print(key), _print(each, depth + 1)) for key, each in pairs]
    if isinstance(value, set | frozenset):
        return len(value)
    kept = getattr(value, "__dict__", None)
    return None if kept is None else _print(dict(kept), depth + 1)
