"""`python -m bench.coordination`."""

from __future__ import annotations

from bench.coordination.command import run

if __name__ == "__main__":
    run()
