"""A real Redis cluster as processes on loopback: three primaries with a replica each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

import redis

from tests.servers.process import free_port
from tests.servers.redis import RedisServer
from tests.waiting import eventually

PRIMARIES: Final = 3
SLOTS: Final = 16_384


class RedisNode(RedisServer):
    """One of them. What it knows of the others is in a file of its folder."""

    def __init__(self, folder: Path, *options: str, node_timeout_ms: int = 5_000) -> None:
        self.bus_port = free_port()
        cluster = ("--cluster-enabled", "yes", "--cluster-port", str(self.bus_port))
        limits = ("--cluster-node-timeout", str(node_timeout_ms))
        super().__init__(folder, *cluster, *limits, *options)

    def command(self) -> Sequence[str]:
        # A node that came back empty under its old name would be believed.
        return [*super().command(), "--appendonly", "yes"]

    def call(self, *words: object) -> Any:
        with redis.Redis(port=self.port, protocol=2) as client:
            return client.execute_command(*words)

    def info(self) -> dict[str, str]:
        with redis.Redis(port=self.port, protocol=2) as client:
            text = client.execute_command("CLUSTER", "INFO")
        if isinstance(text, dict):
            return text
        return dict(line.split(":", 1) for line in text.decode().splitlines() if ":" in line)


class RedisCluster:
    """Six nodes. Those of the first half are primaries at first."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.nodes = [
            RedisNode(folder / f"node-{number}", *options) for number in range(2 * PRIMARIES)
        ]

    @property
    def hosts(self) -> str:
        """What a client is given."""
        return ",".join(node.hosts for node in self.nodes[:2])

    def start(self) -> Self:
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.wait_ready()
        if not self._is_formed():
            self._form()
        self.wait_whole()
        return self

    def wait_whole(self) -> None:
        """Every node knows all of them, every slot has a primary, and every primary a replica."""
        eventually(self._is_whole, "the cluster is whole")

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()

    def pause(self) -> None:
        for node in self.nodes:
            node.pause()

    def resume(self) -> None:
        for node in self.nodes:
            node.resume()

    def primary_of(self, slot: int) -> RedisNode:
        """The node that has this slot now."""
        for first, last, primary, *_ in self._slots():
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == primary[1])
        raise AssertionError(f"slot {slot} has no primary")

    def copied(self) -> bool:
        """Whether every replica has all that its primary has."""
        roles = [node.call("ROLE") for node in self.nodes]
        primaries = [role for role in roles if role[0] in (b"master", "master")]
        return all(int(copy[2]) >= int(role[1]) for role in primaries for copy in role[2])

    def set_node_timeout_ms(self, timeout_ms: int) -> None:
        """How long a primary is away until its replica takes over."""
        for node in self.nodes:
            node.call("CONFIG", "SET", "cluster-node-timeout", timeout_ms)

    def move(self, slot: int) -> None:
        """Give a slot to another primary, key by key, while clients go on."""
        giver = self.primary_of(slot)
        taker = next(
            node
            for node in self.nodes
            if node is not giver and node.call("ROLE")[0] in (b"master", "master")
        )
        giver_id, taker_id = (_text(node.call("CLUSTER", "MYID")) for node in (giver, taker))
        taker.call("CLUSTER", "SETSLOT", slot, "IMPORTING", giver_id)
        giver.call("CLUSTER", "SETSLOT", slot, "MIGRATING", taker_id)
        while keys := giver.call("CLUSTER", "GETKEYSINSLOT", slot, 10):
            giver.call("MIGRATE", "127.0.0.1", taker.port, "", 0, 10_000, "KEYS", *keys)
        for node in (taker, giver):
            node.call("CLUSTER", "SETSLOT", slot, "NODE", taker_id)

    def _slots(self) -> Any:
        living = [node for node in self.nodes if node.process is not None]
        with redis.Redis(port=living[0].port, protocol=2) as client:
            client.set_response_callback("CLUSTER SLOTS", lambda reply, **_: reply)
            return client.execute_command("CLUSTER", "SLOTS")

    def _is_formed(self) -> bool:
        return int(self.nodes[0].info()["cluster_known_nodes"]) == len(self.nodes)

    def _form(self) -> None:
        for node in self.nodes[1:]:
            first = self.nodes[0]
            node.call("CLUSTER", "MEET", "127.0.0.1", first.port, first.bus_port)
        eventually(
            lambda: all(int(node.info()["cluster_known_nodes"]) == 6 for node in self.nodes),
            "all nodes know one another",
        )
        share = SLOTS // PRIMARIES + 1
        for number, node in enumerate(self.nodes[:PRIMARIES]):
            last = min((number + 1) * share, SLOTS) - 1
            node.call("CLUSTER", "ADDSLOTSRANGE", number * share, last)
        for primary, replica in zip(self.nodes, self.nodes[PRIMARIES:], strict=False):
            replica.call("CLUSTER", "REPLICATE", _text(primary.call("CLUSTER", "MYID")))

    def _is_whole(self) -> bool:
        infos = [node.info() for node in self.nodes]
        if any(one["cluster_state"] != "ok" for one in infos):
            return False
        if any(int(one["cluster_slots_ok"]) != SLOTS for one in infos):
            return False
        roles = [node.call("ROLE") for node in self.nodes]
        copies = [role for role in roles if role[0] in (b"slave", "slave")]
        joined = all(role[3] in (b"connected", "connected") for role in copies)
        slots = self._slots()
        return (
            joined
            and len(copies) == len(slots) == PRIMARIES
            and all(len(one) == 4 for one in slots)
        )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.kill()


def _text(reply: bytes | str) -> str:
    return reply if isinstance(reply, str) else reply.decode()
