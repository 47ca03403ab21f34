"""Hooks that change what the loop's body, or the data set, reads.

A temperature in a global that a hook anneals, labels that a hook writes anew: every worker has run
the hook, so they agree. But it is in no state. Who joins, or begins again after a restart, has the
value that the script began with, and computes its lanes with that. So where others can join, what a
hook changes is looked at as often as it runs: of its variables those that the body names, too, and
of the data set the tensors that the hook names. What is tracked travels, and may be changed; so do
plain numbers in modules, if a hook sets an attribute of that name (the rate of a dropout).
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Final

import torch

from holdfast.train.states.tracked import Tracked
from holdfast.train.variables import variables_of
from holdfast.wire.errors import Usage

_DEPTH_MAX: Final = 2  # functions that a hook calls, and what those call
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

    def run(self, hook: Callable[[Any], None], given: Any, show: Callable[[Any], Any]) -> None:
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
