"""What a function of the script names: its closure, and the globals of its module."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType
from typing import Any


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
