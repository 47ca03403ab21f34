"""Runs a program that ends with its parent, in a session of its own; if it is to be another user's,
as that user, who sees what a worker of theirs would (`sandbox`).

    python -I -S as_user.py PLAN.json

As `shim`, it imports little: it becomes the program.
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


def become(plan: dict[str, Any]) -> None:
    """`command` with `environment` in `cwd`; `user` and `places`: whose it is, and what that
    one sees; `parent`: whose end ends it."""
    user = plan.get("user")
    if user:
        sandbox.enter(sandbox.Plan(**plan["places"]))
        os.setgroups(user["groups"])
        os.setresgid(user["gid"], user["gid"], user["gid"])
        os.setresuid(user["uid"], user["uid"], user["uid"])
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != plan["parent"]:
        os._exit(1)
    os.chdir(plan["cwd"])
    os.execve(plan["command"][0], plan["command"], plan["environment"])  # noqa: S606


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        become(json.load(file))
