"""What was written down, as values: requests, probes, plans, writes. And reading it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

# What is wrong with a request begins with this if there was no answer at all.
UNANSWERED: Final = "connection"


@dataclass(frozen=True, slots=True)
class Call:
    """A request to a gateway, on a connection that was `opened_s`. `wrong`: what is wrong with its
    answer; empty: nothing. One whose connection failed was sent to the other gateway: the same
    `number`, another line."""

    sent_s: float
    ended_s: float
    wrong: str = ""
    version: int = 0
    replica: str = ""
    late_s: float = 0.0
    gateway: str = ""
    number: int = 0
    opened_s: float = math.inf


@dataclass(slots=True)
class Strike:
    """From then to then the client may have had no gateway of that name: its Envoy was killed or
    paused, or the way there was cut."""

    gateway: str
    from_s: float
    to_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Lost:
    """From then to then the plane did not know of that gateway: nobody waited for it."""

    gateway: str
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether a replica said, to somebody on the gateway's host, that it is well."""

    began_s: float
    ended_s: float
    worker: int
    well: bool
    gateway: str = ""


@dataclass(frozen=True, slots=True)
class PlanSeen:
    """A plan, when it was first seen, and the versions that it sends requests to."""

    at_s: float
    number: int
    versions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AppliedSeen:
    """A gateway said that its Envoy has taken the plan of this number."""

    at_s: float
    number: int
    gateway: str = ""


@dataclass(frozen=True, slots=True)
class Write:
    """A write that was tried. `register` None: an append. `place`: the number that its
    acknowledgement named, of the node or of the register's version; None: there was none."""

    value: str
    register: int | None
    place: int | None = None


@dataclass(frozen=True, slots=True)
class Plane:
    """What the coordination plane holds at the end: values by place, and each register's version
    and value."""

    sequence: Mapping[int, str] = field(default_factory=dict)
    registers: Mapping[int, tuple[int, str]] = field(default_factory=dict)


def writes_of(lines: list[dict[str, Any]]) -> list[Write]:
    """The lines of a writer, put together."""
    found: dict[str, Write] = {}
    for line in lines:
        if "tried" in line:
            found[line["tried"]] = Write(line["tried"], line["register"])
        else:
            value = line["acknowledged"]
            found[value] = Write(value, line["register"], line["place"])
    return list(found.values())


class Tail:
    """New whole lines of a file that somebody writes. A torn line in the middle is left out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def new(self) -> list[dict[str, Any]]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                whole, newline, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        self._at += len(whole) + len(newline)
        found = []
        for line in whole.split(b"\n"):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue  # its writer was killed in the middle of it
        return found
