"""Numbers that a model keeps as plain attributes, and that its forward pass changes.

`self.calls += 1` counts lanes that this worker happened to compute: it is in no checkpoint, and
another worker's is another number. If the forward pass depends on it, the result depends on who
computed what. Whether it does cannot be seen from outside (a profiler's counter is harmless), so
this warns, once for each attribute, and refuses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from torch import nn

from holdfast.wire import logs

log = logs.get(__name__)

_PLAIN: Final = (int, float, bool)
# Switched by `train()` and `eval()`, in a body that looks at a teacher for instance.
_HARMLESS: Final = frozenset({"training"})
# Beyond so many modules of the script's own a look would take more than a millisecond.
_MODULES_MAX: Final = 2_000

Place = tuple[nn.Module, str, str]  # a module, its path, the attribute


class Attributes:
    """The plain numbers of all modules that are not torch's own."""

    def __init__(self, models: Mapping[str, nn.Module] | None = None) -> None:
        self._modules = [
            (f"{title}.{path}".rstrip("."), module)
            for title, model in (models or {}).items()
            for path, module in model.named_modules()
            if not type(module).__module__.startswith("torch.")
        ][:_MODULES_MAX]
        self._before: dict[tuple[int, str], float] = {}
        self._warned: set[tuple[int, str]] = set()

    def before(self) -> None:
        """The body is about to run."""
        self._before = {(id(m), key): vars(m)[key] for m, _, key in self._places()}

    def after(self) -> None:
        """The body has run."""
        for module, path, key in self._places():
            place, now = (id(module), key), vars(module)[key]
            before = self._before.get(place, now)
            if before == now or before is now or place in self._warned:
                continue
            self._warned.add(place)
            log.warning(
                "the loop's body changes a number that is kept in a module",
                attribute=f"{type(module).__name__}.{key} of {path}: from {before} to {now}",
                why="it counts what this worker computed, and no checkpoint has it: the result may"
                " depend on the number of workers",
                fix="derive it from run.completed, or keep it in a buffer",
            )

    def _places(self) -> Iterator[Place]:
        for path, module in self._modules:
            for key, value in vars(module).items():
                if type(value) in _PLAIN and key not in _HARMLESS:
                    yield module, path, key
