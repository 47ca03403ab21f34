"""Packages that a light install does not have.

`pip install holdfast` brings neither torch nor Envoy nor Kafka. Whoever needs one asks for it
here, and a user without it is told the one command that brings it.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from holdfast.wire.errors import MissingExtra


def require_extra(module: str, extra: str) -> ModuleType:
    """The module, imported; `MissingExtra` with the command that installs it when it is absent.

    An error inside an installed module is not hidden: it is the module's, not a missing extra.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise
        raise MissingExtra(
            f"this needs the package {module!r}, which is not installed",
            why=f"a plain install of Holdfast is light; {module!r} comes with the extra {extra!r}",
            fix=f"pip install 'holdfast[{extra}]'",
        ) from error
