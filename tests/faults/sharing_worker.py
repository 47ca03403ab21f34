"""A worker for tests that holds a lock or a semaphore, or follows a value, and writes down what it
sees.

    python -m tests.faults.sharing_worker NOTES lock|semaphore NAME COUNT [again]
    python -m tests.faults.sharing_worker NOTES config NAME 0

It writes lines into NOTES/<job>.<worker>: `pid N`, `got TOKEN AT`, `sure AT` after each moment at
which `held.check` had nothing to say (AT is before the call), `lost AT`, `released AT`, and for a
value `value JSON` and `changed JSON`. It releases when NOTES/release.<job>.<worker> is there, and
ends; with `again` it releases after a while and acquires again, until it is asked to leave.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

from holdfast.system.clock import SystemClock
from holdfast.wire.errors import HoldfastError, SessionLost
from holdfast.worker.agent_client import AgentClient
from holdfast.worker.sharing import SharedHold, SharingInCluster, WatchedValue

CLOCK = SystemClock()


class Notes:
    def __init__(self, folder: Path, name: str) -> None:
        self._file = (folder / name).open("a", buffering=1)

    def write(self, *words: object) -> None:
        self._file.write(" ".join(map(str, words)) + "\n")


def main(folder: Path, kind: str, name: str, count: int, again: bool) -> int:
    agent = AgentClient.from_environment()
    assert agent is not None, "this script is for workers"
    me = f"{agent.job}.{agent.worker}"
    notes = Notes(folder, me)
    notes.write("pid", os.getpid())

    def leave() -> NoReturn:
        notes.write("left", CLOCK.now_s())
        agent.left()
        agent.close()
        raise SystemExit(0)

    shared = SharingInCluster(agent, leave)
    if kind == "config":
        return follow(shared, agent, name, notes)
    while True:
        try:
            with SharedHold(shared.hold(kind, name, count, None)) as held:
                notes.write("got", held.token, CLOCK.now_s())
                hold(held, notes, folder / f"release.{me}", again)
                notes.write("released", CLOCK.now_s())
        except SessionLost:
            notes.write("lost", CLOCK.now_s())
        if agent.leaving:
            leave()
        if not again:
            agent.done()
            agent.close()
            return 0


def hold(held: SharedHold, notes: Notes, release: Path, again: bool) -> None:
    """Until it is lost, or to be released."""
    turns = 0
    while not held.lost and not release.exists() and not (again and turns > 10):
        before_s = CLOCK.now_s()
        try:
            held.check()
            notes.write("sure", before_s)
        except HoldfastError as error:
            notes.write("unsure", type(error).__name__)
        turns += 1
        time.sleep(0.01)  # pause: between two looks of one that holds it


def follow(shared: SharingInCluster, agent: AgentClient, name: str, notes: Notes) -> int:
    def changed(config: WatchedValue) -> None:
        notes.write("changed", json.dumps(config.value))

    config = shared.config(name, "none", changed)
    notes.write("value", json.dumps(config.value))
    while not agent.leaving:
        time.sleep(0.01)  # pause: between two looks
    shared.close()
    agent.left()
    agent.close()
    return 0


if __name__ == "__main__":
    sys.exit(
        main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), "again" in sys.argv)
    )
