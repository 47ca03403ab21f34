"""When a snapshot is worth sending. Pure.

Whatever a decision may hang on goes at once: a worker that came, changed or ended, a part that is
durable. Steps change all the time, and nothing is decided on the last of them: they go together,
a few times a second. An unchanged snapshot goes as a sign of life. A leader of many agents asks
each for fewer.
"""

from __future__ import annotations

from dataclasses import replace

from holdfast.wire.limits import REPORT_S, REPORT_STEPS_S, REPORT_STEPS_S_MAX
from holdfast.wire.reports import NodeFacts, WorkerFacts


class Pace:
    """What was sent last, and when; and how often steps are wanted."""

    def __init__(self) -> None:
        self.steps_s = REPORT_STEPS_S
        self._facts: NodeFacts | None = None
        self._at_s = 0.0

    def told(self, steps_s: float) -> None:
        """The leader wants steps this often; 0, or anything that is no pace: it does not say."""
        if REPORT_STEPS_S <= steps_s <= REPORT_STEPS_S_MAX:
            self.steps_s = steps_s

    def sent(self, facts: NodeFacts, now_s: float) -> None:
        self._facts = facts
        self._at_s = now_s

    def wait_s(self, facts: NodeFacts, now_s: float) -> float:
        """How long this snapshot may wait; 0: send it now."""
        if self._facts is None:
            return 0.0
        if facts == self._facts:
            pause_s = max(REPORT_S, self.steps_s)
        elif _without_steps(facts) == _without_steps(self._facts):
            pause_s = self.steps_s
        else:
            return 0.0
        return max(0.0, self._at_s + pause_s - now_s)


def _without_steps(facts: NodeFacts) -> NodeFacts:
    return replace(facts, workers=tuple(map(_without_step, facts.workers)))


def _without_step(facts: WorkerFacts) -> WorkerFacts:
    """Holding a state or not does matter; which step's, and what people see of it, does not."""
    return replace(facts, step=None if facts.step is None else 0, metrics={}, trouble="")
