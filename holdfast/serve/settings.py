"""The command that changes a setting of a service, as errors and reasons name it. Pure.

Each setting has one option of `holdfast serve`; it may be given at any time, and changes nothing
else. `tests/unit/serve/test_named_settings.py` gives every one that is named to the command line.
"""

from __future__ import annotations

from typing import Final

from holdfast.control.decide import units

BODY: Final = "--body-max"
BODIES: Final = "--bodies-max"
TIMEOUT: Final = "--timeout"
QUEUE: Final = "--queue-max"
WAIT: Final = "--wait-max"
READY: Final = "--ready"
ERRORS: Final = "--errors-max"
SLOWER: Final = "--slower-max"
NONFINITE: Final = "--guard-nonfinite"
RANGE: Final = "--guard-range"
OUTSIDE: Final = "--guard-outside"
SHIFT: Final = "--guard-shift"
DISAGREE: Final = "--guard-disagree"

_KIB: Final = 1024


def command(service: str, option: str, value: object) -> str:
    """`holdfast serve digits --timeout 20s`."""
    return f"holdfast serve {service} {option} {value}"


def percent(share: float) -> str:
    """`5%`, with as many digits as it needs."""
    return f"{100 * share:.3g}%"


def above(share: float) -> str:
    """A round percentage above this one: what would have let it pass."""
    return percent(min(1.0, max(0.01, 1.2 * share)))


def size(count: int) -> str:
    """A size above this one, as people write it: `64MiB`."""
    unit = 1
    while unit * _KIB <= count:
        unit *= _KIB
    return units.size_of(-(-count // unit) * unit)


def seconds(value_s: float) -> str:
    """`90s`, `5m`."""
    return units.duration_of(round(value_s, 3))
