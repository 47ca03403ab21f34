"""A bundle's code in an import space of its own: two versions of `net.py` live in one process.

    space = Space((folder,), "digits-3")
    net = space.module("net")          # folder/net.py
    space.close()

A module NAME of the bundle is registered as ROOT.NAME, where ROOT is a package that exists once for
each space. Relative imports, packages and whoever looks into `sys.modules[cls.__module__]` work as
ever. What an absolute import means inside the bundle is decided by its own `__import__`: the
bundle's module if it has one, else everybody's. `sys.path` is never touched.

A training script is such a module too. Where it calls `train.launch` it has said all that a model
needs of it: the import ends there, as if that were its last line (`WouldTrain`).

Not isolated: what code does to the process (its environment, its working folder, `sys.path`), and
pickles that name a class by its plain module.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import itertools
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from holdfast.wire.errors import Usage

PREFIX: Final = "holdfast_model_"
_numbers: Final = itertools.count(1)
_spaces: Final[dict[str, Space]] = {}
_changing: Final = threading.Lock()


class WouldTrain(Usage):
    """The code of a model calls `train.launch`. While its module is imported that is no error."""


class Space:
    """The modules of one loaded version. `folders`: where its modules are, the first one first."""

    def __init__(self, folders: Sequence[Path], name: str) -> None:
        plain = re.sub(r"\W", "_", name)
        self.root: Final = f"{PREFIX}{plain}_{next(_numbers)}"
        self._folders = [str(folder.resolve()) for folder in folders]
        self._finders: dict[str, FileFinder] = {}
        self._owned: dict[str, bool] = {}
        self._importlib = _Importlib(self)
        self.builtins: Final[dict[str, Any]] = {**vars(builtins), "__import__": self._import}
        package = ModuleType(self.root, "The code of a model.")
        package.__path__ = list(self._folders)
        with _changing:
            _spaces[self.root] = self
            sys.modules[self.root] = package
            # It stays: another thread may be on its way through the list.
            if _FINDER not in sys.meta_path:
                sys.meta_path.insert(0, _FINDER)

    def module(self, name: str) -> ModuleType:
        """The module that `import name` means inside the bundle; errors are Python's own."""
        return importlib.import_module(f"{self.root}.{name}" if self.owns(name) else name)

    def close(self) -> None:
        """Forget its modules. Code of it that still runs can import nothing of the bundle more."""
        with _changing:
            _spaces.pop(self.root, None)
            inside = f"{self.root}."
            for name in list(sys.modules):
                if name.startswith(inside):
                    sys.modules.pop(name, None)
            sys.modules.pop(self.root, None)
        self._finders.clear()

    def owns(self, name: str) -> bool:
        """Whether an absolute import of `name` inside the bundle means the bundle's own module."""
        top = name.partition(".")[0]
        if top not in self._owned:
            self._owned[top] = self._looks_owned(top)
        return self._owned[top]

    def spec(self, fullname: str, path: Sequence[str] | None) -> ModuleSpec | None:
        """Where the module with this private name is, among the folders `path`."""
        portions: list[str] = []
        for folder in self._folders if path is None else path:
            found = self._finder(folder).find_spec(fullname)
            if found is None:
                continue
            if found.loader is not None:
                return found
            portions.extend(found.submodule_search_locations or ())
        if not portions:
            return None
        namespace = ModuleSpec(fullname, None, is_package=True)
        namespace.submodule_search_locations = portions
        return namespace

    # --- private --------------------------------------------------------------------------------

    def _looks_owned(self, top: str) -> bool:
        # A bundle may be a checkout of ours; the one that runs is the one that serves.
        if top in sys.builtin_module_names or top == "holdfast":
            return False
        found = self.spec(f"{self.root}.{top}", None)
        if found is None:
            return False
        # As Python does it: a folder without `__init__.py` is a package only if nothing else is.
        return found.loader is not None or not _is_elsewhere(top)

    def _finder(self, folder: str) -> FileFinder:
        finder = self._finders.get(folder)
        if finder is None:
            source: Any = partial(_BundleLoader, space=self)
            finder = self._finders[folder] = FileFinder(
                folder,
                (ExtensionFileLoader, EXTENSION_SUFFIXES),
                (source, SOURCE_SUFFIXES),
                (partial(_CompiledLoader, space=self), BYTECODE_SUFFIXES),  # type: ignore[arg-type]
            )
        return finder

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        """`__import__`, for the code of the bundle."""
        if level == 0 and self.owns(name):
            private = f"{self.root}.{name}"
            if fromlist:
                return builtins.__import__(private, globals, locals, fromlist, 0)
            importlib.import_module(private)
            return sys.modules[f"{self.root}.{name.partition('.')[0]}"]
        found = builtins.__import__(name, globals, locals, fromlist or (), level)
        return self._importlib if found is importlib else found


class _Importlib(ModuleType):
    """`importlib` as the bundle's code sees it: `import_module` finds the bundle's own first."""

    def __init__(self, space: Space) -> None:
        super().__init__("importlib", importlib.__doc__)
        self._space = space

    def import_module(self, name: str, package: str | None = None) -> ModuleType:
        own = not name.startswith(".") and self._space.owns(name)
        return importlib.import_module(f"{self._space.root}.{name}" if own else name, package)

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib, name)


class _BundleLoader(SourceFileLoader):
    """Runs a module of the bundle with the space's own builtins."""

    def __init__(self, fullname: str, path: str, *, space: Space) -> None:
        super().__init__(fullname, path)
        self._space = space

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = self._space.builtins
        with suppress(WouldTrain):
            super().exec_module(module)


class _CompiledLoader(SourcelessFileLoader):
    """The same for a module that came without its source."""

    def __init__(self, fullname: str, path: str, *, space: Space) -> None:
        super().__init__(fullname, path)
        self._space = space

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = self._space.builtins
        with suppress(WouldTrain):
            super().exec_module(module)


class _Finder(MetaPathFinder):
    """Finds what is below the root of a space, for Python's own import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(PREFIX):
            return None
        space = _spaces.get(fullname.partition(".")[0])
        return None if space is None else space.spec(fullname, path)


_FINDER: Final = _Finder()


def _is_elsewhere(top: str) -> bool:
    """Whether everybody's `top` is a real module, and no mere folder."""
    if top in sys.modules:
        return True
    try:
        found = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    return found is not None and found.loader is not None and found.origin is not None
