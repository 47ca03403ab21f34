"""`python -m bench.topics`."""

from __future__ import annotations

import sys

from bench.topics.command import main

if __name__ == "__main__":
    sys.exit(main())
