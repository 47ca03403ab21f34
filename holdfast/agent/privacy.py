"""Which workers get a /tmp of their own, and what of the machine's they keep (`sandbox`)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from holdfast.agent import sandbox
from holdfast.system import logs

# Trying whether a worker can have a /tmp of its own: a small process, on a busy machine.
SANDBOX_TRY_S: Final = 10.0

# In the environment of an agent, or of an order: its workers see the machine's own /tmp.
TMP_VARIABLE: Final = "HOLDFAST_TMP"
SHARED: Final = "shared"
# Where CUDA's multi-process server listens unless it is told otherwise.
_ALWAYS: Final = ("/tmp/nvidia-mps",)  # noqa: S108
FIX: Final = "run agents as root, or allow namespaces of users: sysctl user.max_user_namespaces"
_NAMED: Final = re.compile(r"(?:/var)?/tmp/[^\s\"'`,;:=(){}\[\]<>|&*?$\\]+")

log = logs.get(__name__)


class Privacy(NamedTuple):
    """How workers get places of their own; no `kind`: they do not, and why."""

    kind: str
    reason: str = ""


def found(timeout_s: float = SANDBOX_TRY_S) -> Privacy:
    """What this machine allows. Starts a process, and may take a moment."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", sandbox.__file__],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Privacy("", f"it could not be tried: {error}")
    *reasons, kind = done.stdout.splitlines() or [""]
    if kind in (sandbox.MOUNT, sandbox.USER):
        return Privacy(kind)
    return Privacy("", "; ".join(dict.fromkeys(reasons)) or "the system does not let us")


class Keep(NamedTuple):
    """What a worker needs of the machine, wherever it lies."""

    folders: tuple[str, ...] = ()  # the cluster's, and the store's
    words: tuple[str, ...] = ()  # what its job says, and may name


def plan(privacy: Privacy, folder: Path, keep: Keep) -> dict[str, Any] | None:
    """The worker's part of launch.json: its own places, in its folder; None: it has none."""
    needed = {str(folder), *keep.folders, *python_places()[:3]}
    if not privacy.kind:
        return None
    if any(os.path.realpath(path) in sandbox.SHARED for path in needed):
        log.warning("a worker shares /tmp with others", reason="what it needs is /tmp itself")
        return None
    own = []
    for name in ("tmp", "var-tmp"):
        (folder / name).mkdir(mode=0o700, exist_ok=True)
        own.append(str(folder / name))
    kept = {*needed, *python_places(), *_ALWAYS, *named(keep.words)}
    below = [path for path in sorted(kept) if _is_below(path)]
    return {"kind": privacy.kind, "folders": own, "keep": below}


def python_places() -> tuple[str, ...]:
    """Where our Python is, and what it imports from."""
    return (sys.prefix, sys.base_prefix, sys.executable, *filter(None, sys.path))


def named(words: Iterable[str]) -> set[str]:
    """What these words name below /tmp and is there: itself, or the folder where it would be."""
    known = set()
    for word in words:
        for text in _NAMED.findall(word):
            path = Path(os.path.normpath(text))
            while not path.exists() and str(path) not in ("/", *sandbox.SHARED):
                path = path.parent
            if str(path) not in ("/", *sandbox.SHARED):
                known.add(str(path))
    return known


def _is_below(path: str) -> bool:
    real = os.path.realpath(path)
    return any(real.startswith(f"{place}/") for place in sandbox.SHARED)
