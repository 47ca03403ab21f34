"""The driver's end of a load generator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, Self

ROOT: Final = Path(__file__).parents[2]
END_S: Final = 20.0


class LoadFailed(Exception):
    """A load generator could not do its job."""


def load_core() -> int:
    """The core of all load generators: the last that we may use; -1 if there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[-1] if len(cores) > 1 else -1


class LoadGenerator:
    """A process that carries out jobs, one at a time. `send` and `receive` let several overlap."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.job = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.coordination.load", name, str(load_core())],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, do: str, **options: Any) -> None:
        assert self.process.stdin is not None
        self.job = json.dumps({"do": do, **options})
        self.process.stdin.write(self.job + "\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise LoadFailed(f"generator {self.name} ended during {self.job}")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise LoadFailed(f"generator {self.name}, {self.job}: {answer['failed']}")
        return answer

    def call(self, do: str, **options: Any) -> dict[str, Any]:
        self.send(do, **options)
        return self.receive()

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
