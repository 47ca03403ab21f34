"""The checker `linearizable`, a part that lies beside the checkout: an oracle for registers that
keep the highest value that was written to them."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.servers.parts import architecture, parts_folder, unpacked

CHECK_S: Final = 600.0


def linearizable_missing() -> str:
    """Which part is not there; "" if it can be run."""
    name = f"linearizable-{architecture()}.xz"
    if (parts_folder() / name).is_file():
        return ""
    return f"linearizable is not beside the checkout: {name} is not in HOLDFAST_PARTS"


@dataclass(frozen=True, slots=True)
class Operation:
    """What a client asked of a register, and was told. `value`: what was written, or read (b"":
    nothing); the larger bytes are the higher value. `ok`: it was acknowledged; a write that was
    not may have happened, also later."""

    client: int
    key: str
    writes: bool
    value: bytes
    call_ns: int
    return_ns: int
    ok: bool


class History:
    """What all clients asked, as it happens."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.operations: list[Operation] = []

    def add(
        self, client: int, key: str, value: bytes, call_ns: int, *, writes: bool, ok: bool = True
    ) -> None:
        """Something that was called then has returned now."""
        done = Operation(client, key, writes, value, call_ns, time.monotonic_ns(), ok)
        with self._lock:
            self.operations.append(done)

    def acknowledged(self) -> int:
        return sum(one.ok for one in self.operations)


def check(operations: Sequence[Operation]) -> str:
    """ "Ok", "Illegal" or "Unknown"."""
    ranks = {value: rank for rank, value in enumerate(sorted({one.value for one in operations}))}
    end_ns = max((one.return_ns for one in operations), default=0) + 1
    lines = [
        json.dumps(
            {
                "client": one.client,
                "key": one.key,
                "op": "max" if one.writes else "read",
                "value": f"v{ranks[one.value]}" if one.value else "",
                "rank": ranks[one.value],
                "call": one.call_ns,
                "return": one.return_ns if one.ok else end_ns,
                "ok": one.ok,
            }
        )
        for one in operations
        if one.writes or one.ok
    ]
    done = subprocess.run(
        [unpacked(parts_folder() / f"linearizable-{architecture()}.xz")],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=CHECK_S,
        check=False,
    )
    verdict = done.stdout.rpartition(":")[2].strip()
    assert verdict in ("Ok", "Illegal", "Unknown"), done.stdout + done.stderr
    assert (done.returncode == 0) == (verdict == "Ok")
    return verdict
