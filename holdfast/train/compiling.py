"""`torch.compile`, so that what it makes of a batch depends on the batch's shape alone.

By itself it makes kernels for the first shape that it sees, and for any size when it sees a second
one; and when it has compiled too often, it goes on without. Which lane a worker sees first depends
on the other workers. So each shape gets kernels of its own here (with `dynamic=True` all get the
same), running out of room for them is an error, and kernels are not chosen by how long they take.
"""

from __future__ import annotations

import sys
from typing import Any, Final

_SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "torch._dynamo.config": {
        "automatic_dynamic_shapes": False,
        "fail_on_recompile_limit_hit": True,
    },
    "torch._inductor.config": {"deterministic": True},
}


def make_compiler_deterministic() -> None:
    """Where the compiler is in use; otherwise it is not even imported."""
    for name, settings in _SETTINGS.items():
        module = sys.modules.get(name)
        for key, value in settings.items():
            if module is not None and hasattr(module, key):
                setattr(module, key, value)
