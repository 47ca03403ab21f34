"""Where a run is in its data, and what has been agreed since the last step: part of the state."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(slots=True)
class Position:
    """The next step takes `index` of `epoch` of the script's loop number `loop`, and is update
    number `update` on those batches.

    `at`: so many samples of each lane are taken of this epoch (-1: as many as `index` says, in a
    state of an older version). `marks`: where each lane is in its files. `data`: what the loop
    reads, as far as it must not change.
    `begun`: the script has come to that loop; only before the first loop it has not. `ended`: an
    epoch ended with the last step. `settled`: the hooks of the last step have run.
    `results`: what members have agreed on since the last step, in the order in which they were
    asked; `asked` of them by hooks that are through. `before`: what was agreed on before loop 0,
    loop 1 and so on that are begun, by code that a script which begins anew runs again.
    """

    loop: int = 0
    epoch: int = 0
    index: int = 0
    update: int = 0
    stop: bool = False
    begun: bool = False
    ended: bool = False
    settled: bool = True
    asked: int = 0
    results: list[Any] = field(default_factory=list)
    before: list[list[Any]] = field(default_factory=list)
    metrics: MutableMapping[str, float] = field(default_factory=dict)
    at: int = 0
    marks: dict[str, list[int]] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)

    def enter(self, loop: int) -> None:
        """The script has come to a later loop."""
        self.loop, self.epoch, self.index, self.update = loop, 0, 0, 0
        self.stop, self.ended = False, False
        self.at, self.marks, self.data = 0, {}, {}

    def forward(
        self,
        *,
        more: bool,
        stop: bool,
        taken: int,
        marks: dict[str, list[int]],
        updates: int = 1,
    ) -> None:
        """A step is complete: one of so many updates on the same batches. The last of them has
        taken so many samples of each lane."""
        if len(self.before) <= self.loop:
            self.before += [[]] * (self.loop - len(self.before))
            self.before.append(self.results[self.asked :])
        self.update = (self.update + 1) % updates
        self.ended = not more and not self.update
        if not self.update:
            at = self.at if self.at >= 0 else self.index * taken
            self.at, self.marks = (at + taken, marks) if more else (0, {})
            self.epoch, self.index = (self.epoch, self.index + 1) if more else (self.epoch + 1, 0)
        self.stop = self.stop or stop
        self.settled, self.asked = False, 0
        self.results = []

    def over(self, epochs: int | None) -> bool:
        """Whether the loop has nothing more to do. It ends with the last update on a batch: what
        the first has left (weights that were only tried) is not what anybody wants."""
        if self.update:
            return False
        return self.stop or (epochs is not None and self.epoch >= epochs)

    def settle(self) -> None:
        """The hooks of the step have run."""
        self.settled, self.asked = True, len(self.results)

    def notes(self) -> dict[str, Any]:
        return {
            "loop": self.loop,
            "epoch": self.epoch,
            "index": self.index,
            "update": self.update,
            "stop": self.stop,
            "begun": self.begun,
            "ended": self.ended,
            "settled": self.settled,
            "asked": self.asked,
            "results": list(self.results),
            "before": [list(each) for each in self.before],
            "metrics": {name: value.hex() for name, value in self.metrics.items()},
            "at": self.at,
            "marks": self.marks,
            "data": self.data,
        }

    @classmethod
    def of(cls, notes: dict[str, Any]) -> Position:
        known = {each.name for each in fields(cls)}
        found = {name: value for name, value in notes.items() if name in known}
        found["metrics"] = {name: float.fromhex(text) for name, text in notes["metrics"].items()}
        found["results"] = list(notes["results"])
        found["before"] = [list(each) for each in notes.get("before", [])]
        found["at"] = notes.get("at", -1 if notes["index"] else 0)
        return cls(**{"begun": True, **found})
