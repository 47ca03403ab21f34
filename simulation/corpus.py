"""Seeds that once failed, or that showed a breakage: they run in every `make test`.

A line of the file is a seed and, after `#`, why it is there; `shows: NAME` is the seed that showed
that breakage last. A seed stands for the same schedule only as long as what is drawn from it stays
the same; when that changes, `python -m simulation.mutants --record` hunts them anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.wire.errors import Usage

CONTROL_CORPUS: Final = Path(__file__).with_name("corpus.txt")
SERVING_CORPUS: Final = Path(__file__).parent / "serving" / "corpus.txt"
TOPICS_CORPUS: Final = Path(__file__).parent / "topics" / "corpus.txt"
_SHOWS: Final = "shows: "


class KeptSeed(NamedTuple):
    """A seed, and why it is kept."""

    seed: int
    reason: str


def corpus_of(path: Path) -> list[KeptSeed]:
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
        kept.append(KeptSeed(int(seed), reason.strip()))
    return kept


def failed(path: Path) -> list[KeptSeed]:
    """The seeds that once failed."""
    return [kept for kept in corpus_of(path) if not kept.reason.startswith(_SHOWS)]


def shown(path: Path) -> dict[str, int]:
    """For each breakage the seed that showed it last."""
    kept = corpus_of(path)
    found = (each for each in kept if each.reason.startswith(_SHOWS))
    return {each.reason.removeprefix(_SHOWS): each.seed for each in found}


def record(path: Path, seeds: Mapping[str, int]) -> None:
    """Write what showed each breakage in place of what did before; of others it stays."""
    lines = path.read_text(encoding="utf-8").splitlines()
    rest = [line for line in lines if _SHOWS not in line]
    told = [f"{seed}  # {_SHOWS}{name}" for name, seed in {**shown(path), **seeds}.items()]
    path.write_text("\n".join([*rest, *told, ""]), encoding="utf-8")
