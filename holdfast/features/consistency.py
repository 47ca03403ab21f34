"""How consistent a table is, in words; and durations as people write them. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from holdfast.features.columns import nearest
from holdfast.wire.errors import Usage

# What may be cached longer is an eventual table.
AGE_MAX_S_MAX: Final = 86_400.0

_UNITS: Final = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_NUMBER: Final = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"
_DURATION: Final = re.compile(rf"(?:{_NUMBER}(?:ms|[dhms]))+", re.ASCII)
_PART: Final = re.compile(rf"({_NUMBER})(ms|[dhms])", re.ASCII)


class Level(Enum):
    """How strongly one read or write is meant."""

    STRONG = "strong"
    EVENTUAL = "eventual"


@dataclass(frozen=True, slots=True)
class Consistency:
    """What a table promises. `age_max_s`: a strong read may come out of a cache and be so old;
    None: it comes from the store."""

    strong: bool
    age_max_s: float | None = None

    @classmethod
    def parse(cls, text: str | Consistency) -> Consistency:
        """`strong`, `bounded: 5s` or `eventual`; `Usage` for anything else."""
        if isinstance(text, Consistency):
            return text
        word, colon, rest = str(text).partition(":")
        if word.strip() == "bounded" and colon:
            age_s = seconds_of("the age of a bounded read", rest.strip())
            if not 0.0 < age_s <= AGE_MAX_S_MAX:
                raise Usage(
                    f"a bounded read cannot be {rest.strip()} old",
                    why=f"its age is more than 0s and at most {duration_of(AGE_MAX_S_MAX)}",
                    fix="consistency='strong' for no cache at all, 'eventual' for any age",
                )
            return cls(strong=True, age_max_s=age_s)
        if word.strip() not in ("strong", "eventual") or colon:
            raise Usage(
                f"{str(text)[:100]!r} is no consistency of a table",
                why="it is 'strong', 'bounded: 5s' (or another age) or 'eventual'",
                fix=nearest(word.strip(), ("strong", "bounded: 5s", "eventual")) or "write one",
            )
        return cls(strong=word.strip() == "strong")

    def text(self) -> str:
        """What `parse` reads back."""
        if self.age_max_s is not None:
            return f"bounded: {duration_of(self.age_max_s)}"
        return "strong" if self.strong else "eventual"

    def __str__(self) -> str:
        return self.text()


def seconds_of(what: str, text: str) -> float:
    """`7d`, `1h30m`, `500ms`: a number without a unit is refused, since half of the readers would
    guess it wrong."""
    if not isinstance(text, str) or not _DURATION.fullmatch(text):
        raise Usage(
            f"{what}: {text!r} is not a duration",
            why="a duration is a number and d, h, m, s or ms",
            fix="write 7d, 90s or 1h30m, for example",
        )
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))


def duration_of(seconds: float) -> str:
    """The shortest text that `seconds_of` reads back as the same number."""
    for unit in ("d", "h", "m", "s"):
        count = int(seconds / _UNITS[unit])
        if count >= 1 and count * _UNITS[unit] == seconds:
            return f"{count}{unit}"
    milliseconds = round(seconds * 1_000)
    return f"{milliseconds}ms" if milliseconds * 0.001 == seconds else f"{seconds:.9f}s"
