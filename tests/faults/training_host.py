"""A process that has imported torch and forks workers: a test must not wait for every import.

It reads commands, one JSON object a line: {"environment", "output", "options"}; it answers with
the pid, and says when one has ended: {"pid", "status"}.
"""

from __future__ import annotations

import json
import os
import select
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo

from tests.faults import training_scenarios

Scenario = Callable[[dict[str, Any]], None]


def _become(order: dict[str, Any], scenario: Scenario) -> None:
    """In the forked process: a worker, until it ends."""
    status = 1
    try:
        output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.update(order["environment"])
        scenario(order["options"])
        status = 0
    except SystemExit as error:
        status = int(error.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def main(scenario: Scenario = training_scenarios.scenario) -> None:
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    living: set[int] = set()
    pending = b""
    print(json.dumps({"ready": True}), flush=True)
    while True:
        if select.select([0], [], [], 0.01)[0]:
            if not (data := os.read(0, 65536)):
                return
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                if (pid := os.fork()) == 0:
                    _become(json.loads(line), scenario)
                living.add(pid)
                print(json.dumps({"started": pid}), flush=True)
        for pid in list(living):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                living.discard(pid)
                code = os.waitstatus_to_exitcode(status)
                print(json.dumps({"pid": pid, "status": code}), flush=True)


if __name__ == "__main__":
    main()
