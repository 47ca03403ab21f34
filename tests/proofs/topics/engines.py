"""What is killed: our broker, with what a crash may leave of its disk; or nodes of a real Kafka."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tests.proofs.topics.forgetful import forget
from tests.servers.broker import BrokerServer
from tests.servers.kafka import KafkaCluster


class Engine(Protocol):
    """Brokers that can be killed one by one."""

    copies: int

    @property
    def hosts(self) -> str: ...

    def start(self) -> object: ...

    def strike(self, draw: random.Random) -> str:
        """Kill, and start again; what was done."""

    def stop(self) -> object: ...


class ForgetfulBroker(BrokerServer):
    """Our broker, of whose disk a crash keeps what was synced."""

    copies = 1

    def __init__(self, folder: Path, *, torn: bool = True) -> None:
        super().__init__(folder)
        self.notes = folder / "notes"
        self.torn = torn
        self._strikes = 0

    def command(self) -> Sequence[str]:
        where = ["--data", str(self.data), "--listen", self.hosts]
        module = "tests.proofs.topics.forgetful"
        return [sys.executable, "-m", module, str(self.notes), *where, *self.options]

    def strike(self, draw: random.Random) -> str:
        self.kill()
        how = "kill"
        self._strikes += 1
        # By turns: what was written and not synced stays, or is lost and torn.
        if self.torn and self._strikes % 2:
            how = f"kill, power lost: {forget(self.data, self.notes, draw) or 'no tail'}"
        self.start()
        return how


class RealNodes(KafkaCluster):
    """Three nodes of a real Kafka, one killed at a time."""

    copies = 3

    def strike(self, draw: random.Random) -> str:
        number = draw.randrange(len(self.nodes))
        self.nodes[number].kill()
        self.nodes[number].start()
        self.wait_whole()
        return f"kill of node {number + 1}"
