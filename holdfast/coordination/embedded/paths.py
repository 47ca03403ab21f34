"""What a path may be, exactly as ZooKeeper decides it."""

from __future__ import annotations

import re
from typing import Final

ROOT: Final = "/"
PROC: Final = "/zookeeper"
QUOTA: Final = "/zookeeper/quota"
CONFIG: Final = "/zookeeper/config"
# These exist from the beginning and can never be deleted.
SPECIAL: Final = frozenset({ROOT, PROC, QUOTA, CONFIG})

# No control characters, no surrogates or private use, nothing beyond the first plane: Java sees
# such a character as two surrogates, and ZooKeeper refuses those.
_WELL_FORMED: Final = re.compile(
    "(?:/[^/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]+)+"
)


def is_valid(path: str) -> bool:
    """Whether a node may have this path: absolute, no empty, `.` or `..` component."""
    if _WELL_FORMED.fullmatch(path) is None:
        return path == ROOT
    if "/." not in path:
        return True
    return not any(name in (".", "..") for name in path.split("/"))


def ancestors(path: str) -> list[str]:
    """Every path above this one, the nearest first, the root last; none for the root."""
    above: list[str] = []
    end = path.rfind("/")
    while end > 0:
        above.append(path[:end])
        end = path.rfind("/", 0, end)
    if path != ROOT and end == 0:
        above.append(ROOT)
    return above
