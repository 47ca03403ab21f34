"""Batches of attacks, with a look at the server after each."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

from tests.proofs.fuzz.attacks import BATCH_BYTES, Tally, Target, attack
from tests.proofs.fuzz.guard import Guard
from tests.servers import EmbeddedServer


def fuzz(folder: Path, *, size: int, seed: int, say: Callable[[str], None]) -> Tally:
    """Send `size` wrong bytes or more, in every way there is; `Harmed` when the server minds."""
    draw = random.Random(seed)
    tally = Tally()
    scale = min(1.0, size / sum(BATCH_BYTES.values()))
    with EmbeddedServer(folder) as server:
        guard = Guard(server)
        while tally.bytes < size:
            for name in draw.sample(list(BATCH_BYTES), len(BATCH_BYTES)):
                guard.ensure_playground()
                batch = int(BATCH_BYTES[name] * scale)
                asyncio.run(attack(Target(server.port, draw, tally), name, batch))
                guard.check()
                say(f"{tally.bytes:>10} bytes, {tally.connections} connections: {name}")
        guard.check_sessions()
        guard.check()
        guard.leave()
    return tally
