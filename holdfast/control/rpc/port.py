"""What the coordinator needs of its agents: the latest that they said, a way to tell them
something, and a wakeup. `agents` has it over gRPC; tests and the simulator have their own."""

from __future__ import annotations

from typing import Protocol

from holdfast.control.decide.commands import Decision
from holdfast.control.decide.facts import ObservedState


class Agents(Protocol):
    """The agents as one leader sees them. Every method may be called from any thread.

    Snapshots are levels: only the latest of an agent counts. An order is delivered at most once,
    on the connection that the agent has now; without one it is dropped. The coordinator sends it
    again while it is outstanding.
    """

    def begin(self, term: int) -> None:
        """This process leads in `term` from now on. What was heard before is forgotten, and so is
        whatever was not delivered yet: every agent is `unreported` until it reports again."""

    def end(self) -> None:
        """This process does not lead any more. No order that was given leaves after this."""

    def observed(self) -> ObservedState:
        """The latest snapshots of agents whose membership node is alive.

        `unreported` has those that are alive and have told this leader nothing since `begin`, or
        since their membership node was made. An agent whose connection is open and whose node is
        gone is not observed.
        """

    def connection(self, node: str) -> int:
        """A number that is another for each connection of that agent; 0: it has none. An order
        that was sent on another connection may be lost."""

    def order(self, term: int, decision: Decision) -> None:
        """Send the order of this decision to its node, with the term. Never blocks and never
        waits for an answer: the effect is seen in a later snapshot."""

    def wait(self, timeout_s: float) -> bool:
        """Wait for news (a snapshot that differs, an agent that came or went, a `wake`); whether
        there was any. News that came since the last `wait` counts."""

    def wake(self) -> None:
        """Let the present or the next `wait` return at once. Never blocks."""
