"""How a process of ours that is not a command begins and ends: light imports, an exit code.

sys.exit(process.main(serve))     # in `__main__`; `serve` imports what it needs
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.wire.errors import HoldfastError


def main(serve: Callable[[Sequence[str]], int]) -> int:
    """Call `serve` with the process's arguments; what it says in the end, or an error's own code.

    Nothing that logs may be imported before this.
    """
    # For tracebacks that we never print, structlog would load rich: five megabytes in every such
    # process. What is None here cannot be imported.
    modules: dict[str, Any] = sys.modules
    modules.setdefault("rich", None)
    from holdfast.wire import logs  # noqa: PLC0415

    logs.set_up()
    try:
        return serve(sys.argv[1:])
    except HoldfastError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
