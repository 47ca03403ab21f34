"""`python -m bench`: every bench there is. Today that is the coordination plane's."""

from __future__ import annotations

from bench.coordination.command import run

if __name__ == "__main__":
    run()
