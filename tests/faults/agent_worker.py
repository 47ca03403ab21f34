"""A worker for tests: it marks its start, adopts every view it is given, and counts steps.

    python -m tests.faults.agent_worker MARKS [steps]

Each start adds a line with its process number to MARKS/starts.<worker>. It is done after `steps`
steps of a view; without the number it goes on until it is asked to leave.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from holdfast.worker.agent_client import AgentClient


def main(marks: Path, steps: int | None) -> int:
    agent = AgentClient.from_environment()
    assert agent is not None, "this script is for workers"
    with (marks / f"starts.{agent.worker}").open("a") as file:
        file.write(f"{os.getpid()}\n")
    agent.ready()
    step = 0
    while not agent.leaving:
        view = agent.view(timeout_s=0.01)
        if view is not None:
            agent.adopted(view.number, step)
        for share in agent.shares():
            agent.missed(share.attempt.number)
        step += 1
        agent.step(step)
        if steps is not None and step >= steps and view is None:
            agent.done()
            return 0
        time.sleep(0.005)  # pause: what a step takes
    agent.left()
    agent.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None))
