"""What tests fork is a process of its own, and ends with who forked it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from tests.servers.forking import Forker
from tests.waiting import eventually


def prepare() -> None:
    """Nothing but this module."""


def become(order: dict[str, Any]) -> None:
    if order.get("waits"):
        time.sleep(600)  # pause: until it is killed
    sys.stderr.write(f"{os.environ['WHO']} in {Path.cwd().name}")
    sys.exit(order["code"])


def test_a_forked_process_has_its_own_folder_environment_outputs_and_exit_code(
    tmp_path: Path,
) -> None:
    forker = Forker(__name__)
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        outputs = (out.fileno(), err.fileno())
        forked = forker.fork({"code": 7}, env={"WHO": "I"}, cwd=tmp_path, outputs=outputs)
        assert forked.wait(60) == 7
        waiting = forker.fork({"waits": True}, env={}, cwd=tmp_path, outputs=outputs)
    assert (tmp_path / "err").read_text() == f"I in {tmp_path.name}"
    assert waiting.poll() is None
    forker.close()
    eventually(lambda: not Path(f"/proc/{waiting.pid}").exists(), "it ends with its forker")
