"""Seeds that once failed, or that showed a breakage: they run in every `make test`.

A line of the file is a seed and, after `#`, why it is there. A seed stands for the same schedule
only as long as what is drawn from it stays the same; when that changes, the file is made anew from
`python -m simulation.mutants --json` and from what is found later.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from holdfast.wire.errors import Usage

CONTROL_CORPUS: Final = Path(__file__).with_name("corpus.txt")


class Kept(NamedTuple):
    """A seed, and why it is kept."""

    seed: int
    reason: str


def corpus_of(path: Path) -> list[Kept]:
    """The seeds of a corpus, in the order of the file. `Usage`: a line that is none."""
    kept = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        seed, _, reason = text.partition("#")
        if not seed.strip().isdigit() or not reason.strip():
            raise Usage(
                f"line {number} of {path.name} is no seed with a reason: {text!r}",
                fix="write a number, then # and why the seed is kept",
            )
        kept.append(Kept(int(seed), reason.strip()))
    return kept
