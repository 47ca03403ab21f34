"""Runs a program that ends with its parent, and so does all that it has started: pip builds
packages by other processes. If it is to be another user's, as that user, who sees what a worker of
theirs would (`sandbox`).

    python -I -S as_user.py PLAN.json        as the leader of a session

As `shim`, it imports little: it is there as long as the program is.
"""

# ruff: noqa: PTH100, PTH123
from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Any

if __name__ == "__main__":  # executed by its path, with nothing to import from but Python's own
    sys.path.append(os.path.abspath(f"{__file__}/../../.."))

from holdfast.agent import sandbox

_SET_PDEATHSIG = 1


def run(plan: dict[str, Any]) -> int:
    """`command` with `environment` in `cwd`; `user` and `places`: whose it is, and what that
    one sees; `parent`: whose end ends it. Its exit code, as a shell has it."""
    user = plan.get("user")
    if user:
        sandbox.enter(sandbox.Plan(**plan["places"]))
        os.setgroups(user["groups"])
        os.setresgid(user["gid"], user["gid"], user["gid"])
        os.setresuid(user["uid"], user["uid"], user["uid"])
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    _end_with_parent(signal.SIGTERM)
    if os.getppid() != plan["parent"]:
        return 1
    me, child = os.getpid(), os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _end_with_parent(signal.SIGKILL)
        if os.getppid() != me:
            os._exit(1)
        os.chdir(plan["cwd"])
        os.execve(plan["command"][0], plan["command"], plan["environment"])  # noqa: S606
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


def _end_with_parent(number: signal.Signals) -> None:
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, int(number), 0, 0, 0)


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        found = json.load(file)
    sys.exit(run(found))
