"""What a mutant is: a text that occurs once in a file, and another one in its place."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """`test` is what pytest is given, relative to the tree; it must fail with the mutant."""

    name: str
    file: str
    old: str
    new: str
    test: str


def without(name: str, file: str, around: str, line: str, test: str) -> Mutant:
    """The mutant in which a line does nothing. `around`: the line and what makes it the only one
    of its kind."""
    assert around.count(line) == 1, f"{name}: {line!r} is not once in its surroundings"
    return Mutant(name, file, around, around.replace(line, "pass"), test)
