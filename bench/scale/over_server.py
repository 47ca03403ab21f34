"""A measurement over embedded servers, a fresh one for each size."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.servers.embedded import EmbeddedServer


def run(
    what: str,
    about: str | None,
    sizes: Sequence[int],
    measure: Callable[[EmbeddedServer, int], dict[str, Any]],
) -> None:
    """The command line of a bench whose sizes are numbers of `what`."""
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--sizes", type=int, nargs="+", default=sizes, help=f"numbers of {what}")
    options = parser.parse_args()
    rows = []
    for size in options.sizes:
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-scale-") as folder:
            server = EmbeddedServer(Path(folder))
            server.start()
            try:
                rows.append(measure(server, size))
            finally:
                server.stop()
        if not options.json:
            print(rows[-1], flush=True)
    if options.json:
        print(json.dumps({what: rows}, indent=2))
