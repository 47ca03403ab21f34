"""The kinds of model, each as something that predicts.

Those that are code (torch, python, function) are here; those that are files are a module each
(`files_kind`), and those of them that run a pickle are computed by another process (`apart`).
"""

from __future__ import annotations

import functools
import importlib
import inspect
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np

from holdfast.models.apart import SeparateModel
from holdfast.models.files_kind import ALLOW_PICKLE, Servable, files_kind, shaped
from holdfast.models.importing import Space
from holdfast.models.records import CODE_KINDS, WEIGHTS, ModelKind, Signature, Version
from holdfast.wire.errors import BadModel, HoldfastError

# Of a model's own traceback: what people read first, and what fits into a node of the plane.
MODEL_TRACE_LINES: Final = 12

Array = np.ndarray[Any, Any]
_OURS: Final = str(Path(__file__).parent)

__all__ = ["Servable", "entry_parts", "found_in", "label", "last_lines", "load"]


def load(
    version: Version, folder: Path, code: Path, device: str | None, *, here: bool = False
) -> Servable:
    """See `loading.load`. `here`: in this process, also if it runs a pickle."""
    what = label(version)
    space: Space | None = None
    try:
        if version.kind not in CODE_KINDS:
            if version.arguments.get(ALLOW_PICKLE) and not here:
                return SeparateModel(version, folder, device)
            return files_kind(version.kind).load(version, folder, device)
        inside, module, name = entry_parts(version.entry, what)
        space = Space((code / inside, code) if inside else (code,), what)
        entry = found_in(space.module(module), name, what)
        made = _made(version, folder, entry, device)
    except HoldfastError:
        _closed(space)
        raise
    except Exception as error:
        _closed(space)
        raise BadModel(
            f"{what} cannot be loaded",
            why=f"{type(error).__name__}: {_public(str(error), space)}",
            fix="correct its code, and publish it again",
            story=last_lines(error),
        ) from error
    return _InSpace(made, space)


def entry_parts(entry: str, what: str) -> tuple[str, str, str]:
    """`[FOLDER/]MODULE:NAME` as the folder of the bundle that comes first, module and name."""
    where, colon, name = entry.partition(":")
    inside, _, module = where.rpartition("/")
    if not (colon and name and module) or ".." in inside.split("/") or inside.startswith("/"):
        raise BadModel(
            f"{what} has the entry {entry!r}",
            why="it does not say what to load",
            fix="write it as MODULE:NAME, for example net:Net",
        )
    return inside, module, name


def found_in(module: ModuleType, name: str, what: str) -> Any:
    """The class or function `name` (dotted) of the module; `BadModel` if there is none."""
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            plain = module.__name__.partition(".")[2] or module.__name__
            raise BadModel(
                f"{what}: module {plain} has no {name}",
                why="its entry names a class or a function of the bundle",
                fix="publish it with the right entry: MODULE:NAME",
            )
        found = getattr(found, part)
    return found


def label(version: Version) -> str:
    """`MODEL@N`; the model alone for one that is only tried."""
    return f"{version.model}@{version.number}" if version.number else version.model


def last_lines(error: BaseException) -> tuple[str, ...]:
    """The end of the error's traceback, without our own frames and those of Python's import."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_OURS, "<frozen importlib", importlib.__path__[0]))
    ]
    lines = "".join([*traceback.format_list(frames), *traceback.format_exception_only(error)])
    return tuple(lines.rstrip().splitlines()[-MODEL_TRACE_LINES:])


# --- python and function --------------------------------------------------------------------------


def _made(version: Version, folder: Path, entry: Any, device: str | None) -> Servable:
    if version.kind is ModelKind.TORCH:
        # Not at the top: it imports torch.
        from holdfast.models.torch_kind import TorchServable  # noqa: PLC0415

        weights = folder / WEIGHTS
        return TorchServable.of(version.signature, entry, version.arguments, weights, device)
    if version.kind is ModelKind.PYTHON:
        return _Python(version.signature, _instance(entry, folder, version.arguments))
    call = functools.partial(entry, **version.arguments) if version.arguments else entry
    return _Function(version.signature, call)


def _instance(entry: Any, folder: Path, arguments: Mapping[str, Any]) -> Any:
    """An object of the class, loaded. `load` may be a class method that makes it."""
    if not hasattr(entry, "load"):
        return entry(**arguments)
    if isinstance(inspect.getattr_static(entry, "load"), classmethod | staticmethod):
        return entry.load(folder, **arguments)
    made = entry()
    made.load(folder, **arguments)
    return made


class _Function:
    def __init__(self, signature: Signature, call: Callable[[Mapping[str, Array]], Any]) -> None:
        self._signature = signature
        self._call = call

    def predict(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return shaped(self._signature, self._call(inputs))

    def close(self) -> None:
        """Nothing is held."""


class _Python(_Function):
    def __init__(self, signature: Signature, made: Any) -> None:
        super().__init__(signature, made.predict)
        self._made = made

    def close(self) -> None:
        close = getattr(self._made, "close", None)
        if callable(close):
            close()


class _InSpace:
    """A servable, and the code that goes with it."""

    def __init__(self, inner: Servable, space: Space) -> None:
        self._inner = inner
        self._space = space
        self.predict = inner.predict

    def close(self) -> None:
        try:
            self._inner.close()
        finally:
            self._space.close()
            del self.predict, self._inner


def _closed(space: Space | None) -> None:
    if space is not None:
        space.close()


def _public(words: str, space: Space | None) -> str:
    """The words without the space's private name."""
    return words if space is None else words.replace(f"{space.root}.", "")
