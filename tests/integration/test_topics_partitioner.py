"""A key goes to the partition that the Java client chooses for it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from holdfast import topics
from tests.conftest import require_part
from tests.servers.broker import BrokerServer
from tests.servers.kafka import kafka_missing, run_tool
from tests.waiting import eventually

pytestmark = pytest.mark.engines

# Of about half of them the hash is negative; a remainder of that is what clients get wrong.
KEYS: Final = ("", "a", "kéy", "钥匙", "🔑", *(f"user-{number}" for number in range(200)))
PARTITIONS: Final = 7


def _murmur2_sign(key: bytes) -> bool:
    """Whether Kafka's hash of it is negative."""
    length, mask = len(key), 0xFFFFFFFF
    seed, m = 0x9747B28C, 0x5BD1E995
    found = seed ^ length
    for at in range(0, length - length % 4, 4):
        k = int.from_bytes(key[at : at + 4], "little") * m & mask
        k ^= k >> 24
        found = (found * m & mask) ^ (k * m & mask)
    rest = key[length - length % 4 :]
    if rest:
        found = (found ^ int.from_bytes(rest, "little")) * m & mask
    found ^= found >> 13
    found = found * m & mask
    found ^= found >> 15
    return bool(found >> 31)


def test_our_producer_and_the_java_client_choose_the_same_partition(tmp_path: Path) -> None:
    require_part(kafka_missing())
    signs = {_murmur2_sign(key.encode()) for key in KEYS}
    assert signs == {False, True}
    with (
        BrokerServer(tmp_path) as broker,
        topics.connect(f"kafka://{broker.hosts}") as cluster,
    ):
        for name in ("ours", "java"):
            cluster.admin.create(name, PARTITIONS)
        with cluster.producer() as producer:
            sent = {key: producer.send("ours", b"v", key=key) for key in KEYS}
            ours = {key: future.result(60).partition for key, future in sent.items()}
        run_tool(
            "ConsoleProducer",
            *("--bootstrap-server", broker.hosts, "--topic", "java"),
            *("--reader-property", "parse.key=true", "--reader-property", "key.separator=|"),
            stdin="".join(f"{key}|v\n" for key in KEYS),
        )
        found: dict[str, int] = {}
        with cluster.consumer("java") as consumer:

            def all_of_them() -> bool:
                for record in consumer.poll(0.5):
                    found[(record.key or b"").decode()] = record.partition
                return len(found) == len(KEYS)

            eventually(all_of_them, "all keys")
        assert ours == found
