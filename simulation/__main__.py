"""`python -m simulation`: look for trouble in many seeds, or see one of them again."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from simulation.commandline import run_command
from simulation.world import CONTROL

WHAT = (
    "Look for trouble in many simulated worlds of control and training, or see one of them again."
)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command(CONTROL, WHAT, arguments)


if __name__ == "__main__":
    sys.exit(main())
