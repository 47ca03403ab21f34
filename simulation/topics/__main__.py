"""`python -m simulation.topics`: look for trouble in many seeds, or see one of them again."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from simulation.commandline import run_command
from simulation.topics.world import TOPICS_WORLD

WHAT = "Run the broker's core with its clients in a simulated world, seed by seed."


def main(arguments: Sequence[str] | None = None) -> int:
    """0: nothing was found."""
    return run_command(TOPICS_WORLD, WHAT, arguments)


if __name__ == "__main__":
    sys.exit(main())
