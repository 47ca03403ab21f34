"""`python -m holdfast.agent --cluster DIR --node NAME`: one node's agent, until it is told to stop.

`holdfast up` and `holdfast join` start it so.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from holdfast.system import process


def serve(arguments: Sequence[str]) -> int:
    from holdfast.agent import main  # noqa: PLC0415

    return main.serve(main.parsed(arguments))


if __name__ == "__main__":
    sys.exit(process.main(serve))
