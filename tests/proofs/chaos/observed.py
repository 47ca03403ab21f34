"""Conditions on what is observed: `job.step > 40`. Pure.

    chaos.kill(agent=2).when(job.step > 40)
    chaos.cut("a", "plane").when((leader.term > 3) & (service.ready >= 2))

A condition is a value with its own words. Whether it holds is asked with what was observed last.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final

Observed = Mapping[str, float]

_SIGNS: Final[dict[str, Callable[[float, float], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
}


@dataclass(frozen=True)
class Condition:
    """True or not, of what is observed. `&` and `|` join two."""

    words: str
    _holds: Callable[[Observed], bool] = field(repr=False, compare=False)

    def holds(self, observed: Observed) -> bool:
        """What was never observed makes no condition true."""
        return self._holds(observed)

    def __and__(self, other: Condition) -> Condition:
        return Condition(
            f"({self.words}) & ({other.words})",
            lambda observed: self.holds(observed) and other.holds(observed),
        )

    def __or__(self, other: Condition) -> Condition:
        return Condition(
            f"({self.words}) | ({other.words})",
            lambda observed: self.holds(observed) or other.holds(observed),
        )

    def __bool__(self) -> bool:
        raise TypeError(f"whether {self.words} is only known while it runs: give it to .when(...)")

    def __str__(self) -> str:
        return self.words


class Fact:
    """A number that is observed. Compared with another number it gives a condition."""

    def __init__(self, name: str) -> None:
        self.name = name

    def _is(self, sign: str, number: float) -> Condition:
        def holds(observed: Observed) -> bool:
            found = observed.get(self.name)
            return found is not None and _SIGNS[sign](found, number)

        return Condition(f"{self.name} {sign} {number:g}", holds)

    def __gt__(self, number: float) -> Condition:
        return self._is(">", number)

    def __ge__(self, number: float) -> Condition:
        return self._is(">=", number)

    def __lt__(self, number: float) -> Condition:
        return self._is("<", number)

    def __le__(self, number: float) -> Condition:
        return self._is("<=", number)

    def reaches(self, number: float) -> Condition:
        """Exactly this number. (`==` of two facts stays what it is for every object.)"""
        return self._is("==", number)


class Subject:
    """What facts are about: `job.step` is a fact, `job.stpe` an error that names the nearest."""

    def __init__(self, name: str, *facts: str) -> None:
        self._name = name
        self._facts = {fact: Fact(f"{name}.{fact}") for fact in facts}

    def __getattr__(self, name: str) -> Fact:
        facts: dict[str, Fact] = self.__dict__.get("_facts", {})
        if name in facts:
            return facts[name]
        near = get_close_matches(name, facts, 1) or list(facts)
        raise AttributeError(
            f"nobody observes {self.__dict__.get('_name')}.{name}: did you mean {near[0]}?"
        )


clock = Subject("clock", "seconds")
job = Subject("job", "step", "committed", "round")
leader = Subject("leader", "term")
service = Subject("service", "ready", "version", "answered")
EVERY: Final = (clock, job, leader, service)


def known() -> set[str]:
    """The names of all facts."""
    return {fact.name for subject in EVERY for fact in subject._facts.values()}
