"""Hooks that run after steps and epochs; and those that read what the loop's body writes.

A body may gather things in a list for a hook to print. But each worker gathers only what its own
lanes gave, so a hook that changes the model by it changes each worker's model otherwise; and where
one worker is left, nobody is there to notice. While a batch is given twice (see `rehearsal`) the
variables that hooks read are compared, before the body and behind it. Hooks that read what has
changed are watched when they run: they may show it, but not train by it.
"""

from __future__ import annotations

import dis
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from holdfast.train.states.tracked import Tracked
from holdfast.wire.errors import Usage

_PLAIN: Final = (int, float, complex, str, bytes, bool, type(None))
_ELEMENTS_MAX: Final = 1_000  # of a container that are looked at, from its end
_DEPTH_MAX: Final = 2  # a metric object's list is seen, a list within that is not

Hook = Callable[[Any], object]


class StepHooks:
    """The hooks of a run, and which of what they read the body of the present loop writes."""

    def __init__(self) -> None:
        self._hooks: list[tuple[int | None, Hook, Any]] = []
        self._watched: list[Hook] = []  # those that there were when the loop began
        self._before: list[dict[str, Any]] = []
        self._written: dict[int, str] = {}  # by the hook's number, a variable
        self._writes: HookWrites | None = None

    def add(self, every: int | None, hook: Hook, run: Any) -> None:
        """Call `hook(run)` after every so many steps; None: after every epoch."""
        self._hooks.append((every, hook, run))

    def due(self, before: int, now: int, *, ended: bool) -> Iterator[tuple[int, Hook, Any]]:
        """The hooks of the steps behind `before` up to `now`, numbered; `ended`: and those of an
        epoch that ended with them."""
        for number, (every, hook, run) in enumerate(self._hooks):
            if ended if every is None else now // every > before // every:
                yield number, hook, run

    # --- what they read, and what they write ---------------------------------------------------

    def open(self, tracked: Tracked) -> None:
        """A loop begins."""
        self._watched = [hook for _, hook, _ in self._hooks]
        self._before, self._written, self._writes = [], {}, None
        for hook in self._watched:
            tracked.carry(stored_by(hook))

    def guard(self, read: frozenset[str], data: object, tracked: Tracked) -> None:
        """Others may join: what the body reads, and its samples, hooks must not change."""
        if self._hooks:
            self._writes = HookWrites(read, data, tracked)

    def before_body(self) -> None:
        """The body is about to run."""
        self._before = [_read_by(hook) for hook in self._watched]

    def after_body(self) -> None:
        """The body has run."""
        for number, (hook, before) in enumerate(zip(self._watched, self._before, strict=True)):
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
        if self._writes is None:
            hook(given)
        else:
            self._writes.run(hook, given, _print)


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


# --- what they write ------------------------------------------------------------------------------


_MEMBERS_MAX: Final = 64  # tensors in one attribute of a data set
_ARRAY_BYTES_MAX: Final = 1 << 20  # a larger array is not gone through

Value = tuple[str, Any]  # the name of a variable, and what it is


class HookWrites:
    """What must not change while a hook runs: `read`, the names that the body reads; `data`."""

    def __init__(self, read: frozenset[str], data: object, tracked: Tracked) -> None:
        self._read, self._tracked = read, tracked
        self._stored = list(_stored(data))

    def watched(self, hook: Any) -> tuple[list[Value], list[Value]]:
        """Of what this hook names: variables that the body reads, and tensors of the data."""
        code = list(_functions(hook))
        variables = [
            (name, value)
            for each in code
            for name, value in variables_of(each)
            if name in self._read
        ]
        named = {name for each in code for name in each.__code__.co_names}
        places = {_place(value) for each in code for _, value in variables_of(each)} - {None}
        stored = [(n, it) for n, it in self._stored if n in named or _place(it) in places]
        return variables, stored

    def run(self, hook: Callable[[Any], object], given: Any, show: Callable[[Any], Any]) -> None:
        """Run the hook. Raise `Usage` if it has changed any of that; `show`: what is compared."""
        variables, stored = self.watched(hook)
        before = [show(value) for _, value in variables]
        kept = [_content(value) for _, value in stored]
        hook(given)
        title = getattr(hook, "__qualname__", hook)
        for (name, old), shown, now in zip(variables, before, self.watched(hook)[0], strict=False):
            if now[0] == name and shown != show(now[1]) and not self._travels(old):
                raise _refused(
                    f"the hook {title} changes {name}, which the loop's body reads",
                    "compute it from run.completed or run.epoch, or keep it in what is tracked: a "
                    "buffer of a model, or run.track(thing=thing) with state_dict and "
                    "load_state_dict",
                )
        for (name, value), content in zip(stored, kept, strict=True):
            if content != _content(value) and not self._travels(value):
                raise _refused(
                    f"the hook {title} changes {name} of the data set",
                    "keep them in a buffer of a tracked model, where the loop's body looks them up "
                    "by a number that the data set gives with each sample",
                )

    def _travels(self, value: Any) -> bool:
        """Whether it is part of the state."""
        tracked = self._tracked
        for thing in tracked.objects.values():
            if value is thing or any(value is it for it in getattr(thing, "__dict__", {}).values()):
                return True
        groups = [group for it in tracked.optimizers.values() for group in it.param_groups]
        models = tracked.models.values()
        tensors = [it for m in models for it in (*m.parameters(), *m.buffers())]
        return any(value is it for it in (*groups, *tensors))


def stored_by(hook: Any) -> set[str]:
    """The names of attributes that a hook sets, of whatever it may be."""
    codes = [each.__code__ for each in _functions(hook)]
    return {
        str(each.argval)
        for code in codes
        for each in dis.get_instructions(code)
        if each.opname == "STORE_ATTR"
    }


def _refused(what: str, fix: str) -> Usage:
    return Usage(
        what,
        why="it is part of no state: a worker that joins later, or begins again, would have what "
        "the script began with",
        fix=fix,
    )


def _functions(hook: Any, depth: int = 0) -> Iterator[FunctionType]:
    """The hook, and the script's own functions that it names."""
    if isinstance(hook, partial):
        hook = hook.func
    if isinstance(hook, MethodType):
        hook = hook.__func__
    hook = getattr(hook, "__wrapped__", hook)  # behind @torch.no_grad()
    if not isinstance(hook, FunctionType) or depth > _DEPTH_MAX:
        return
    yield hook
    for _, value in variables_of(hook):
        if isinstance(value, FunctionType) and value.__globals__ is hook.__globals__:
            yield from _functions(value, depth + 1)


def _stored(data: object, depth: int = 0) -> Iterator[Value]:
    """The tensors and arrays of a data set, by the attributes in which it has them."""
    kept: Mapping[str, Any] = getattr(data, "__dict__", {})
    for name, value in kept.items():
        members = value[:_MEMBERS_MAX] if isinstance(value, (list, tuple)) else [value]
        for each in members:
            if isinstance(each, torch.Tensor) or hasattr(each, "__array_interface__"):
                yield name, each
            elif isinstance(each, torch.utils.data.Dataset) and depth < _DEPTH_MAX:
                yield from _stored(each, depth + 1)


def _place(value: Any) -> int | None:
    """Where the memory of a tensor or an array begins, if it is one."""
    if isinstance(value, torch.Tensor):
        strided = value.layout == torch.strided and not value.is_meta
        return value.untyped_storage().data_ptr() if strided else None
    memory = getattr(value, "__array_interface__", None)
    return int(memory["data"][0]) if isinstance(memory, dict) else None


def _content(value: Any) -> Any:
    """What is compared of a tensor or an array."""
    if isinstance(value, torch.Tensor):
        return value._version
    return hash(value.tobytes()) if value.nbytes <= _ARRAY_BYTES_MAX else None


def variables_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Each name that has a value now, and the value."""
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue  # it has no value yet
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield name, function.__globals__[name]
