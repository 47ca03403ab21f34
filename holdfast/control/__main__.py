"""`python -m holdfast.control --cluster DIR --name NAME`: a coordinator, until it is told to stop.

`holdfast up` starts it so.
"""

from __future__ import annotations

import sys
from typing import Any


def main() -> int:
    # For tracebacks that we never print, structlog would load rich: five megabytes in every such
    # process. What is None here cannot be imported.
    modules: dict[str, Any] = sys.modules
    modules.setdefault("rich", None)
    from holdfast.control.main import parsed, serve  # noqa: PLC0415
    from holdfast.wire import logs  # noqa: PLC0415
    from holdfast.wire.errors import HoldfastError  # noqa: PLC0415

    logs.set_up()
    try:
        return serve(parsed(sys.argv[1:]))
    except HoldfastError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
