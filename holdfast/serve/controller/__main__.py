"""`python -m holdfast.serve.controller --cluster DIR --name NAME`: until it is told to stop.

`holdfast up` starts it so.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from holdfast.system import process


def serve(arguments: Sequence[str]) -> int:
    from holdfast.serve.controller import main  # noqa: PLC0415

    return main.serve(main.parsed(arguments))


if __name__ == "__main__":
    sys.exit(process.main(serve))
