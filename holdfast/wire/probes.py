"""How any program's readiness and life are found out from outside, as values.

A program that knows nothing of us has ports that its job file names, and answers there; or a
command says how it is. Its agent asks (`holdfast.agent.probing`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from holdfast.wire.limits import PROBE_EVERY_S, PROBE_FAILURES, PROBE_TIMEOUT_S

PORT_VARIABLE: Final = "HOLDFAST_PORT_"  # and the name of the port, in capitals
# `{port.http}`, `$HOLDFAST_PORT_HTTP` or `${HOLDFAST_PORT_HTTP}` in a word of a command.
PORT_WORD: Final = re.compile(
    r"\{port\.([A-Za-z0-9_-]+)\}"
    r"|\$\{HOLDFAST_PORT_([A-Z0-9_]+)\}"
    r"|\$HOLDFAST_PORT_([A-Z0-9_]+)"
)


class ProbeKind(Enum):
    """What is asked."""

    HTTP = "http"  # GET: a status from 200 to 399 passes
    TCP = "tcp"  # a connection that is accepted passes
    EXEC = "exec"  # a command that ends with status 0 passes
    LINK = "link"  # nothing: the program says itself that it is ready (`holdfast.worker`)


@dataclass(frozen=True, slots=True)
class Probe:
    """One question, asked every `every_s`. `failures` in a row mean that the answer is no.

    `within_s`: an update waits so long for the first answer that passes; None: our own bound.
    """

    kind: ProbeKind
    port: str = ""  # the name of a port of the job, or a number
    path: str = ""  # of HTTP
    command: tuple[str, ...] = ()  # of EXEC
    every_s: float = PROBE_EVERY_S
    timeout_s: float = PROBE_TIMEOUT_S
    failures: int = PROBE_FAILURES
    within_s: float | None = None


def variable_of(name: str) -> str:
    """The environment variable that tells a program the number of this port."""
    return PORT_VARIABLE + name.upper().replace("-", "_")


def ports_in(words: Sequence[str]) -> set[str]:
    """The ports that these words name, as `variable_of` spells them."""
    found = {name for word in words for name in PORT_WORD.findall(word)}
    return {variable_of(next(filter(None, each))) for each in found}


def with_ports(words: Sequence[str], ports: Mapping[str, int]) -> tuple[str, ...]:
    """The words, with the numbers of the ports that they name."""
    numbers = {variable_of(name): str(number) for name, number in ports.items()}

    def number(found: re.Match[str]) -> str:
        name = next(filter(None, found.groups()))
        return numbers.get(variable_of(name), found[0])

    return tuple(PORT_WORD.sub(number, word) for word in words)
