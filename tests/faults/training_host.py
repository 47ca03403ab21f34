"""What a worker with torch is forked from: a test must not wait for every import.

{"scenario": module, "options": {...}}      the module's `scenario(options)` is carried out
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import traceback
from typing import Any


def prepare() -> None:
    """torch, with what it imports only when an optimizer is made, and all of ours that trains."""
    import torch
    import torch._dynamo

    import holdfast.train

    for found in pkgutil.walk_packages(holdfast.train.__path__, "holdfast.train."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    importlib.import_module("holdfast.models.importing")
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def become(order: dict[str, Any]) -> None:
    """In the forked process: a worker, until it ends."""
    status = 1
    try:
        importlib.import_module(order["scenario"]).scenario(order["options"])
        status = 0
    except SystemExit as error:
        status = int(error.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)
