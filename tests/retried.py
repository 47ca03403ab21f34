"""Which failed tests `.ci/run` tries once more: `python -m tests.retried LASTFAILED`.

Only those that `.ci/retried` lists, each with its reason, and only if nothing else has failed. It
prints them; it ends with 1 if there is nothing to try.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

LIST: Final = Path(__file__).parents[1] / ".ci" / "retried"
# Whoever wants a fourth mends one of the three.
LISTED_MAX: Final = 3


def listed(text: str) -> dict[str, str]:
    """The tests of such a list, with their reasons."""
    found = {}
    for line in text.splitlines():
        name, _, reason = (part.strip() for part in line.partition(" #"))
        if not name or name.startswith("#"):
            continue
        if not reason:
            raise ValueError(f"{name} has no reason")
        found[name] = reason
    if len(found) > LISTED_MAX:
        raise ValueError(f"{len(found)} tests are listed; at most {LISTED_MAX} may be")
    return found


def again(failed: set[str], text: str) -> list[str]:
    """Those to try once more; none if one has failed that is not listed."""
    known = listed(text)
    return sorted(failed) if failed and failed <= known.keys() else []


def main(path: str) -> int:
    last = Path(path)
    failed = set(json.loads(last.read_text())) if last.exists() else set()
    found = again(failed, LIST.read_text())
    sys.stdout.write("".join(f"{name}\n" for name in found))
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
