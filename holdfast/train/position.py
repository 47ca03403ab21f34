"""Where a run is in its data, and what has been agreed since the last step: part of the state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Position:
    """The next step takes `index` of `epoch` of the script's loop number `loop`.

    `at`: so many samples of each lane are taken of this epoch (-1: as many as `index` says, in a
    state of an older version). `marks`: where each lane is in its files. `data`: what the loop
    reads, as far as it must not change.
    `ended`: an epoch ended with the last step. `settled`: the hooks of the last step have run.
    `results`: what members have agreed on since the last step, in the order in which they were
    asked; `asked` of them by hooks that are through.
    """

    loop: int = 0
    epoch: int = 0
    index: int = 0
    stop: bool = False
    ended: bool = False
    settled: bool = True
    asked: int = 0
    results: list[Any] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    at: int = 0
    marks: dict[str, list[int]] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)

    def enter(self, loop: int) -> None:
        """The script has come to a later loop."""
        self.loop, self.epoch, self.index, self.stop, self.ended = loop, 0, 0, False, False
        self.at, self.marks, self.data = 0, {}, {}

    def forward(self, *, more: bool, stop: bool, taken: int, marks: dict[str, list[int]]) -> None:
        """A step is complete. It has taken so many samples of each lane."""
        self.ended = not more
        at = self.at if self.at >= 0 else self.index * taken
        self.at, self.marks = (at + taken, marks) if more else (0, {})
        self.epoch, self.index = (self.epoch, self.index + 1) if more else (self.epoch + 1, 0)
        self.stop = self.stop or stop
        self.settled, self.asked = False, 0
        self.results = []

    def over(self, epochs: int | None) -> bool:
        """Whether the loop has nothing more to do."""
        return self.stop or (epochs is not None and self.epoch >= epochs)

    def settle(self) -> None:
        """The hooks of the step have run."""
        self.settled, self.asked = True, len(self.results)

    def notes(self) -> dict[str, Any]:
        return {
            "loop": self.loop,
            "epoch": self.epoch,
            "index": self.index,
            "stop": self.stop,
            "ended": self.ended,
            "settled": self.settled,
            "asked": self.asked,
            "results": list(self.results),
            "metrics": {name: value.hex() for name, value in self.metrics.items()},
            "at": self.at,
            "marks": self.marks,
            "data": self.data,
        }

    @classmethod
    def of(cls, notes: dict[str, Any]) -> Position:
        metrics = {name: float.fromhex(text) for name, text in notes["metrics"].items()}
        at = notes.get("at", -1 if notes["index"] else 0)
        return cls(**{**notes, "results": list(notes["results"]), "metrics": metrics, "at": at})
