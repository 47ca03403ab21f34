"""A script that begins anew in the middle of a job finds everything as it was.

A worker that joins, and every worker of a job that is started again, runs the script from its first
line: loops that are through are passed over, and the code before, between and behind them is run
again. It comes to the same as it did before, by three rules:

- What it asks of all workers there (`once`, `evaluate`, `publish`) is answered with what was agreed
  on then.
- Outside of loops a worker offers others the state as the loop before has left it (or, before the
  first loop, as it was made), not as the code that runs now has changed it: whoever takes it runs
  that code too.
- Whoever was given the state of a loop takes it over when the script has come to that loop. In a
  hook it does so once more at the first question which nobody has answered yet: whoever gave it
  stood there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.train.position import Position
from holdfast.train.states.state import Entry, State
from holdfast.train.states.tracked import Tracked
from holdfast.wire.errors import Usage

# Arrays and the rest of the tracked objects, and the settings that these know.
Offered = tuple[list[Entry], dict[str, Any], dict[str, str]]
# What a script comes to that looks for something in an empty list, a None or an unbound name.
_OF_MISSING_VALUES: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    TypeError,
    ValueError,
)


class Resuming:
    """What one worker remembers of where its script is and what it was given."""

    def __init__(self) -> None:
        self.late = False  # whether others made steps that this worker's script did not see
        self.region = 0  # loops that the script has left behind
        self._asked = 0  # in this region
        self.offered: Offered | None = None  # while the script is outside of its loop
        self.again: State | None = None  # to be taken over at the loop that it is of
        self.middle: State | None = None  # the same in the middle of hooks

    def adopted(self, state: State, position: Position, *, inside: bool) -> None:
        """This state has replaced what there was. `inside`: the script is in a loop."""
        self.middle = None if position.settled else state
        if not inside:
            self.again = state
            self.late = self.late or position.begun
            # What begins with a slash belongs to the mode, not to what the script tracks.
            mine = [each for each in state.entries if not each.name.startswith("/")]
            self.offered = mine, dict(state.notes["objects"]), dict(state.notes["applied"])

    def keep(self, tracked: Tracked, applied: Mapping[str, str]) -> None:
        """Offer what there is now, whatever the code that follows makes of it."""
        entries, skeletons = tracked.entries()
        copies = [Entry(it.name, it.dtype, it.shape, _copied(it.data)) for it in entries]
        self.offered = copies, skeletons, dict(applied)

    def explained(self, error: BaseException) -> BaseException:
        """The same error. At one of the script's own is noted why it may have come here."""
        if self.late and isinstance(error, _OF_MISSING_VALUES):
            error.add_note(
                "why: perhaps because this worker's script began in the middle of the job: what it "
                "would have kept in variables of its own, in a loop or a hook, is not here\n"
                "fix: keep such values in a tracked object (run.track)"
            )
        return error

    def inside(self) -> None:
        """The script is in the loop that the state is of."""
        self.offered = self.again = None

    def leave(self) -> None:
        """The script has left a loop behind."""
        self.region += 1
        self._asked = 0

    def ask(self, position: Position) -> tuple[int, Any]:
        """The number of the next question outside of loops, and what the answer was if the job has
        passed it; else None."""
        number, self._asked = self._asked, self._asked + 1
        if len(position.before) <= self.region:
            return number, None
        known = position.before[self.region]
        if number >= len(known):
            raise Usage(
                f"before loop {self.region} the script asks for more than it did at first",
                why=f"{len(known)} results of once, evaluate and publish are known from then",
                fix="run the same script, or start a new job",
            )
        return number, known[number]


def _copied(data: memoryview) -> memoryview:
    return memoryview(bytearray(data))
