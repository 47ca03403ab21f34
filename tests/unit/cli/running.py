"""Running the command as its users do: a process, its two outputs, its exit code."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.servers import commands

ROOT = Path(__file__).parents[3]


def environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
    return {**kept, "PYTHONPATH": str(ROOT), "COLUMNS": "100", "NO_COLOR": "1", **more}


def holdfast(*words: str, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    """Run `holdfast WORDS…`."""
    return commands.run(*words, timeout=120, cwd=cwd, env=environment(**more))


def told(done: subprocess.CompletedProcess[str]) -> Any:
    """The one document on stdout."""
    return json.loads(done.stdout)
