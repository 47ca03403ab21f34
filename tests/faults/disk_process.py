"""A process that uses a data folder until somebody ends it.

    python -m tests.faults.disk_process FOLDER BATCH SNAPSHOT_TRANSACTIONS

It says `open`, then after each commit the zxid that is durable, and `snapshot PID` when a process
that makes a snapshot was started. With a batch of 0 it only holds the folder.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from holdfast.coordination.embedded.store import Store
from tests.unit.embedded.histories import commit


def say(word: object) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main(folder: str, batch: str, snapshot_transactions: str) -> None:
    store = Store.open(Path(folder), snapshot_transactions=int(snapshot_transactions))
    say("open")
    while not int(batch):
        time.sleep(60)  # pause: until it is killed
    told = None
    while True:
        commit(store, int(batch))
        say(store.last_zxid)
        store.maintain()
        if store.compactor.pid not in (None, told):
            told = store.compactor.pid
            say(f"snapshot {told}")


if __name__ == "__main__":
    main(*sys.argv[1:])
