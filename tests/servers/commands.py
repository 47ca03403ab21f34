"""`holdfast WORDS…` without the start of Python, which is most of what a short command costs.

Each is a process of its own, as when a person gives it: its own words, folder, environment,
outputs and exit code. What is about the start itself (which modules a command loads, whom a signal
reaches) starts its process with `subprocess`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.servers import forking

Result = subprocess.CompletedProcess[str]

# What the commands import when they are carried out; importing it starts nothing.
_PACKAGES: Final = ("holdfast.cli", "holdfast.client", "holdfast.launch", "holdfast.serve")


def run(
    *words: str,
    env: Mapping[str, str],
    timeout: float,
    cwd: Path | str | None = None,
    given: str = "",
) -> Result:
    """What `holdfast WORDS…` printed, and its exit code, as `subprocess.run` would tell it.

    It waits, as that does, until nobody holds the two outputs any more.
    """
    outputs: list[bytes] = [b"", b""]
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    with contextlib.ExitStack() as held:
        readers = [held.enter_context(os.fdopen(ours, "rb")) for ours in (out, err)]
        try:
            forked = forking.shared(__name__).fork(
                {"words": words},
                env=env,
                cwd=cwd or Path.cwd(),
                outputs=(out_end, err_end),
                given=given,
            )
        finally:
            os.close(out_end)
            os.close(err_end)

        def read(number: int) -> None:
            outputs[number] = readers[number].read()

        threads = [threading.Thread(target=read, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout)
        if any(thread.is_alive() for thread in threads):
            forked.kill()
            raise subprocess.TimeoutExpired(["holdfast", *words], timeout)
        status = forked.wait(timeout)
    said = [text.decode() for text in outputs]
    return subprocess.CompletedProcess(["holdfast", *words], status, *said)


def prepare() -> None:
    """Import what commands import, and make the tree of commands: typer makes it at each call."""
    for package in _PACKAGES:
        path = importlib.import_module(package).__path__
        for found in pkgutil.iter_modules(path, f"{package}."):
            importlib.import_module(found.name)
    from typer.main import get_command

    from holdfast.cli import main as commands

    made: Any = get_command(commands.app)
    commands.app = made
    made.make_context("holdfast", ["version"])  # parses, for what typer imports when it does


def become(order: dict[str, Any]) -> None:
    """`python -m holdfast WORDS…`, until it ends."""
    sys.argv = ["holdfast", *order["words"]]
    sys.orig_argv = [sys.executable, "-m", "holdfast", *order["words"]]
    from holdfast.cli import main as commands

    commands.run()
