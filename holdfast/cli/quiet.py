"""gRPC without its own lines on stderr: `import_grpc` before anything that needs it.

Its core writes a line for each connection that fails, over whatever is shown. We tell of failures
ourselves, in words. It reads the variable once, when it is imported; children must not inherit it.
"""

from __future__ import annotations

import os
from typing import Final

_VARIABLE: Final = "GRPC_VERBOSITY"


def import_grpc() -> None:
    """Import it, silenced, unless the user has said how loud it should be."""
    if _VARIABLE in os.environ:
        return
    os.environ[_VARIABLE] = "NONE"
    try:
        import grpc  # noqa: F401
    finally:
        del os.environ[_VARIABLE]
