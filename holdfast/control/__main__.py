"""`python -m holdfast.control --cluster DIR --name NAME`: a coordinator, until it is told to stop.

`holdfast up` starts it so.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from holdfast.system import process


def serve(arguments: Sequence[str]) -> int:
    from holdfast.control.shell import main  # noqa: PLC0415

    return main.serve(main.parsed(arguments))


if __name__ == "__main__":
    sys.exit(process.main(serve))
