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

from holdfast.models import texts
from holdfast.models.apart import Apart
from holdfast.models.datatypes import numpy_of
from holdfast.models.files_kind import ALLOW_PICKLE, Servable, files_kind
from holdfast.models.importing import Space
from holdfast.models.records import CODE_KINDS, WEIGHTS, Kind, Signature, TensorSpec, Version
from holdfast.wire.errors import BadModel, HoldfastError

# Of a model's own traceback: what people read first, and what fits into a node of the plane.
MODEL_TRACE_LINES: Final = 12

Array = np.ndarray[Any, Any]
_OURS: Final = str(Path(__file__).parent)

__all__ = ["Servable", "entry_parts", "found_in", "label", "last_lines", "load", "named", "shaped"]


def load(
    version: Version, folder: Path, code: Path, device: str | None, *, here: bool = False
) -> Servable:
    """See `loading.load`. `here`: in this process, also if it runs a pickle."""
    what = label(version)
    space: Space | None = None
    try:
        if version.kind not in CODE_KINDS:
            if version.arguments.get(ALLOW_PICKLE) and not here:
                return Apart(version, folder, device)
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


def shaped(signature: Signature, result: Any) -> dict[str, Array]:
    """What a model returned, as the outputs of its signature; `BadModel` if it is not. Without
    outputs in the signature: whatever it gave, with names."""
    specs = signature.outputs
    if not specs:
        return named(result)
    if isinstance(result, Mapping):
        values = [result.get(spec.name) for spec in specs]
    elif isinstance(result, tuple) or (isinstance(result, list) and len(specs) > 1):
        values = list(result)
    else:
        values = [result]
    if len(values) != len(specs) or any(value is None for value in values):
        names = ", ".join(spec.name for spec in specs)
        got = sorted(result) if isinstance(result, Mapping) else f"{len(values)} of them"
        raise BadModel(
            "the model did not give the outputs of its signature",
            why=f"they are {names}; it gave {got}",
            fix="return a dict with these names, or a tuple in this order",
        )
    found = {}
    for spec, value in zip(specs, values, strict=True):
        array = np.asarray(value)
        if array.dtype != (wanted := numpy_of(spec.datatype)):
            array = array.astype(wanted)
        if spec.text is not None:
            array = _as_recorded(spec, array)
        if array.ndim != len(spec.shape):
            raise BadModel(
                f"the model's output {spec.name!r} has the shape {list(array.shape)}",
                why=f"its signature says {list(spec.shape)}",
                fix="publish it again with an example that shows what it gives",
            )
        found[spec.name] = array
    return found


def _as_recorded(spec: TensorSpec, array: Array) -> Array:
    try:
        return texts.fitted(spec, array)
    except (UnicodeError, TypeError) as error:
        raise BadModel(
            f"the model's output {spec.name!r} is not of {'texts' if spec.text else 'bytes'}",
            why=str(error),
            fix="return what it returned for its example",
        ) from error


def named(result: Any) -> dict[str, Array]:
    """Names for what a model returned, where nobody has given any: `output`, or `output_0`, ..."""
    if isinstance(result, Mapping):
        return {str(name): np.asarray(value) for name, value in result.items()}
    if isinstance(result, tuple):
        return {f"output_{at}": np.asarray(value) for at, value in enumerate(result)}
    return {"output": np.asarray(result)}


# --- python and function --------------------------------------------------------------------------


def _made(version: Version, folder: Path, entry: Any, device: str | None) -> Servable:
    if version.kind is Kind.TORCH:
        # Not at the top: it imports torch.
        from holdfast.models.torch_kind import TorchServable  # noqa: PLC0415

        weights = folder / WEIGHTS
        return TorchServable.of(version.signature, entry, version.arguments, weights, device)
    if version.kind is Kind.PYTHON:
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
