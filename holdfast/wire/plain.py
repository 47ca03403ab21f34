"""Values by the names of their fields, with the standard library alone.

For what also runs where `msgspec` does not: the simulator, on PyPy, with the agent's journal. It is
the spelling of `wire.documents` and `wire.values`, which `msgspec` reads and writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any


def plain_of(value: Any) -> Any:
    """A value as JSON knows it."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {field.name: plain_of(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain_of(held) for key, held in value.items()}
    if isinstance(value, tuple | list):
        return [plain_of(held) for held in value]
    return value


def known_fields(kind: type, plain: Mapping[str, Any]) -> dict[str, Any]:
    """Of `plain` what `kind`, a dataclass or a named tuple, has a field for."""
    names = [each.name for each in fields(kind)] if is_dataclass(kind) else kind._fields  # type: ignore[attr-defined]
    return {name: plain[name] for name in names if name in plain}
