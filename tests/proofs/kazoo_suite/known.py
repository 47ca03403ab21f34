"""The tests that are known not to pass, each with its reason, held against what happened."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.proofs.kazoo_suite.suite import Outcome

TABLE = Path(__file__).with_name("known.toml")


class Verdict(NamedTuple):
    """How a run compares with the table."""

    passed: int
    failed: int
    skipped: int
    named: tuple[tuple[Outcome, str], ...]  # did not pass, and the table says why
    unnamed: tuple[Outcome, ...]  # did not pass, and the table does not know it
    recovered: tuple[str, ...]  # in the table, yet it passed

    @property
    def good(self) -> bool:
        return not self.unnamed and not self.recovered


def reasons(real: bool) -> dict[str, str]:
    """Test to reason: those that hold for every single server, and those of one kind."""
    table = tomllib.loads(TABLE.read_text())
    return {**table["every"], **table["real" if real else "embedded"]}


def judge(outcomes: Iterable[Outcome], known: Mapping[str, str]) -> Verdict:
    """Compare what happened with what is known."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    named, unnamed, recovered = [], [], []
    for one in outcomes:
        counts[one.state] += 1
        if one.state == "passed":
            if one.test in known:
                recovered.append(one.test)
        elif one.test in known:
            named.append((one, known[one.test]))
        else:
            unnamed.append(one)
    return Verdict(
        counts["passed"],
        counts["failed"],
        counts["skipped"],
        tuple(named),
        tuple(unnamed),
        tuple(recovered),
    )
