"""Bounds of what workers share through their agents: locks, semaphores, watched values."""

from __future__ import annotations

from typing import Final

# What one worker holds at once: more than that is a data structure, and belongs elsewhere.
SHARED_HELD_MAX: Final = 64
# What one worker waits for at once, each in a thread of its own.
SHARED_WAITS_MAX: Final = 16
# What all workers of an agent wait for at once: each is a thread of the agent.
SHARED_AGENT_WAITS_MAX: Final = 256
# Threads of an agent that give back what is not held any more.
SHARED_RELEASES: Final = 4
# Values that one worker follows, and that all workers of an agent follow: each of the latter is a
# thread of the agent and a watch in the plane.
SHARED_CONFIGS_MAX: Final = 16
SHARED_AGENT_CONFIGS_MAX: Final = 64
# A watched value goes to every worker that follows it, in one message.
SHARED_VALUE_BYTES_MAX: Final = 64 * 1024
# Holders of one semaphore: whoever waits reads the names of all of them.
SHARED_SEMAPHORE_MAX: Final = 1_000
# After its time is over a worker still waits so long for its agent's answer, which may say whom it
# waited for. An agent gives a request that is under way `OPERATION_GRACE_S`; this is more.
SHARED_ANSWER_S: Final = 7.0
