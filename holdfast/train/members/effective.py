"""From which step on a setting is in effect. Pure.

The coordinator gives every worker the same growing list of settings: name, value, and the step that
its user named. A view says how many of them everyone knows who meets in it. One that is new takes
effect at max(the named step, the step agreed in the meeting + 1). What was decided is the `Record`:
it belongs to the state, and whoever takes the state takes the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class EffectiveSetting(NamedTuple):
    """`value` is in effect for step `step` and later ones."""

    name: str
    value: str
    step: int


Record = tuple[EffectiveSetting, ...]  # in the order of the coordinator's list, from its beginning


def extended(
    record: Record, given: Sequence[tuple[str, str, int]], count: int, agreed: int
) -> Record:
    """The record with the first `count` of the given settings, after a meeting at step `agreed`."""
    new = given[len(record) : count]
    return record + tuple(
        EffectiveSetting(name, value, max(at_step or 0, agreed + 1)) for name, value, at_step in new
    )


def in_effect(record: Record, step: int) -> dict[str, str]:
    """The settings for computing `step`: of two for one name the later step counts, then the later
    in the list."""
    ordered = sorted((setting.step, place) for place, setting in enumerate(record))
    found: dict[str, str] = {}
    for effective, place in ordered:
        if effective <= step:
            found[record[place].name] = record[place].value
    return found


def lineage(record: Record, step: int) -> Record:
    """Those settings that have had an influence on the state of `step`: two states of one step are
    the same if these are."""
    return tuple(setting for setting in record if setting.step <= step)
