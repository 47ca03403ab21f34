"""`python -m holdfast.serve.replica SERVICE`: one replica of a service, until it is told to leave.

Agents start it so, as a worker of the service's job.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from holdfast.system import process


def serve(arguments: Sequence[str]) -> int:
    # Before anything loads the libraries that read it: a replica computes with one thread unless
    # its agent has given it more cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from holdfast.serve.replica import main  # noqa: PLC0415

    return main.serve(main.parsed(arguments))


if __name__ == "__main__":
    sys.exit(process.main(serve))
