"""Workers for scripts, forked from `training_host`: `{"script", "folder"}`."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any


def scenario(options: dict[str, Any]) -> None:
    """In a forked process: be `python SCRIPT` in that folder."""
    Path(options["folder"]).mkdir(parents=True, exist_ok=True)
    os.chdir(options["folder"])
    script = options["script"]
    sys.argv = [script]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")
