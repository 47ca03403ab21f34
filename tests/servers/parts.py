"""Engines that lie beside the checkout: unpacked once, and only those built for this machine.

They are parts of the test bench and never of the repository. They lie in `$HOLDFAST_PARTS`, which
is `../shared/parts` beside the checkout where it is not set.
"""

from __future__ import annotations

import fcntl
import lzma
import os
import platform
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
# How the names of the parts call what this machine is.
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


def parts_folder() -> Path:
    """Where parts would lie."""
    return Path(os.environ.get("HOLDFAST_PARTS") or ROOT.parent / "shared" / "parts")


def architecture() -> str:
    """This machine's, as parts are named."""
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def unpacked(part: Path) -> Path:
    """The program in an `.xz`, unpacked into a cache that all test processes share."""
    found = part.stat()
    cache = Path(tempfile.gettempdir()) / "holdfast-test-parts"
    cache.mkdir(exist_ok=True)
    target = cache / f"{part.stem}-{found.st_size}-{int(found.st_mtime)}"
    with (cache / f"{part.stem}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            draft = target.with_suffix(".tmp")
            with lzma.open(part) as packed, draft.open("wb") as file:
                shutil.copyfileobj(packed, file, 1 << 20)
            draft.chmod(0o755)
            draft.rename(target)
    return target


def unpacked_folder(part: Path) -> Path:
    """What is in a `.tar.xz`, unpacked into the same cache."""
    found = part.stat()
    cache = Path(tempfile.gettempdir()) / "holdfast-test-parts"
    cache.mkdir(exist_ok=True)
    target = cache / f"{part.name.partition('.tar')[0]}-{found.st_size}-{int(found.st_mtime)}"
    with (cache / f"{part.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            draft = target.with_name(f"{target.name}.tmp")
            shutil.rmtree(draft, ignore_errors=True)
            with tarfile.open(part, "r:xz") as packed:
                packed.extractall(draft, filter="data")
            draft.rename(target)
    return target
