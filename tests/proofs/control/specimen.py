"""A small history in which all is well, made by hand: two terms, two nodes, a death, a restore."""

from __future__ import annotations

from tests.proofs.control.checks import Ground
from tests.proofs.control.events import (
    Adopted,
    Answer,
    Commit,
    Decision,
    Event,
    Fault,
    Freed,
    Kept,
    Obeyed,
    Placed,
    Process,
    Status,
    Step,
    Term,
    View,
)

GROUND = Ground(lanes={"j": 4}, cpu={"j": 1.0}, capacity={"a": 2.0, "b": 2.0})


def history() -> list[Event]:
    return [
        Term(1.0, 1, "c-one"),
        Status(1.1, "j", "queued", "just submitted", 1, 0),
        Placed(1.2, [["j", 1, "a"], ["j", 2, "b"]]),
        Decision(1.2, "j", 0, 0, 1, "PlaceWorker", "there is room"),
        Obeyed(1.3, "a", "term", 1),
        Obeyed(1.3, "b", "term", 1),
        Obeyed(1.3, "a", "accepted", 0, "j", 1),
        Obeyed(1.3, "b", "accepted", 0, "j", 2),
        Process(1.4, "a", "j", 1, 101, 11, alive=True),
        Process(1.4, "b", "j", 2, 102, 12, alive=True),
        View(1.5, "j", 1, {"1": [0, 1], "2": [2, 3]}, 0, 0, 10),
        Status(1.6, "j", "running", "all is there", 3, 1),
        Adopted("j", 1, 1, {"1": [0, 1], "2": [2, 3]}, 0),
        Step("j", 1, 101, 1, 5, "five"),
        Step("j", 2, 102, 1, 5, "five"),
        Commit(2.0, "j", 5, 1, "m5", 20),
        Decision(2.0, "j", 0, 1, 1, "CommitCheckpoint", "all shares are durable"),
        Fault(2.1, "kill", "leader c-one"),
        Fault(2.1, "kill", "worker j.1"),
        Process(2.1, "a", "j", 1, 101, 11, alive=False),
        Term(2.5, 2, "c-two"),
        Obeyed(2.6, "a", "term", 2),
        Obeyed(2.6, "b", "term", 2),
        Freed(2.7, "j", 1, "a", alive=False, lost=False),
        View(2.8, "j", 2, {"2": [0, 1, 2, 3]}, None, 1, 30),
        Decision(2.8, "j", 0, 2, 2, "WriteView", "worker 1 has gone"),
        Step("j", 2, 102, 2, 8, "eight"),
        Fault(3.0, "kill", "worker j.2"),
        Process(3.0, "b", "j", 2, 102, 12, alive=False),
        Freed(3.1, "j", 2, "b", alive=False, lost=False),
        Placed(3.1, [["j", 3, "a"]]),
        Obeyed(3.2, "a", "accepted", 0, "j", 3),
        Process(3.3, "a", "j", 3, 103, 13, alive=True),
        View(3.4, "j", 3, {"3": [0, 1, 2, 3]}, 5, 2, 40),
        Status(3.5, "j", "running", "from step 5", 4, 2),
        Step("j", 3, 103, 3, 8, "eight"),
        Step("j", 3, 103, 3, 10, "ten"),
        Commit(4.0, "j", 10, 2, "m10", 50),
        Decision(4.0, "j", 0, 3, 2, "CommitCheckpoint", "the last step"),
        Process(4.1, "a", "j", 3, 103, 13, alive=False),
        Freed(4.2, "j", 3, "a", alive=False, lost=False),
        Status(4.3, "j", "succeeded", "finished: step 10 is committed", 4, 2),
        Kept("j", 5, "m5"),
        Kept("j", 10, "m10"),
        Answer("j", "succeeded", 10, 10, {"sum": 1}, {"sum": 1}),
    ]
