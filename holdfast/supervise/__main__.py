"""`python -m holdfast.supervise --cluster DIR`: keeps the processes that are wanted there alive.

`holdfast up` starts it so. With `--wait` it waits for its turn while another one does it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from holdfast.supervise import records, wanted
from holdfast.supervise.supervisor import ENDED, KIND, NAME, Supervisor
from holdfast.system import process
from holdfast.wire.errors import HoldfastError
from holdfast.wire.limits import KEEP_TURN_S


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m holdfast.supervise")
    parser.add_argument("--cluster", type=Path, required=True, help="the cluster's folder")
    parser.add_argument("--lock", type=int, help="the number of a file: its lock is ours already")
    parser.add_argument("--wait", action="store_true", help="wait while another one lives")
    given = parser.parse_args(arguments)
    os.umask(process.PRIVATE_MASK)
    process.raise_file_limit()
    folder, lock = given.cluster.absolute(), given.lock
    if lock is not None:
        os.set_inheritable(lock, False)
    try:
        return _serve(folder, lock, wait=given.wait)
    except KeyboardInterrupt:  # it waited for its turn; the cluster goes on
        return 128 + signal.SIGINT
    except HoldfastError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code


def _serve(folder: Path, lock: int | None, *, wait: bool) -> int:
    while lock is None and wait:
        if wanted.is_down(folder):
            return ENDED
        lock = records.taken(folder, KIND, NAME)
        if lock is None:
            known = records.recorded(folder, KIND, NAME)
            if known is None or known.wait(KEEP_TURN_S):
                time.sleep(0.1)  # somebody who is kept takes its place this very moment
    if wanted.is_down(folder):
        return ENDED
    former = records.recorded(folder, KIND, NAME)
    supervisor = Supervisor(folder, former)
    supervisor.listen()
    with records.register(folder, KIND, NAME, lock=lock) as registration:
        return supervisor.run(registration)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
