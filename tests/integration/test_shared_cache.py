"""Answers in a real Redis: shared by replicas, and never an error or a wait for anybody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import redis
import redis.asyncio

from holdfast.serve.cache.results import Outputs, ResultCache, pack, unpack
from holdfast.serve.cache.shared import PREFIX, SharedCache
from holdfast.serve.records import ServiceSpec
from tests.conftest import require_service
from tests.servers.redis import RedisServer, redis_missing
from tests.waiting import PATIENCE_S, soon

# A test's Redis may be slow because the machine is: what is tested is not how fast it answers.
PATIENT_S = 20.0
OUTPUTS = {"y": np.arange(4, dtype=np.float32), "w": np.array([b"one", b"two"], object)}


def shares(results: ResultCache) -> bool:
    return results.counts().shared


def answers(shared: SharedCache) -> bool:
    return shared.answers


def key(number: int) -> bytes:
    return number.to_bytes(20, "big")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    require_service(redis_missing())
    with RedisServer(tmp_path / "redis") as running:
        yield running


async def with_shared(
    url: str, body: Callable[[SharedCache], Awaitable[None]], **bounds: float
) -> None:
    bounds = {"get_s": PATIENT_S, "talk_s": PATIENT_S, **bounds}
    shared = SharedCache(redis, url, **bounds)
    shared.start()
    try:
        await soon(lambda: shared.answers, "the cache answers")
        await body(shared)
    finally:
        await shared.close()


async def stored(shared: SharedCache, number: int) -> bytes:
    """What is kept under a number, once it is there."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        value = await shared.get(key(number))
        if value is not None:
            return value
        assert time.monotonic() < deadline_s, f"{number} is not kept"
        await asyncio.sleep(0.01)


def test_what_one_replica_computed_another_need_not(server: RedisServer) -> None:
    async def compute() -> Outputs:
        return dict(OUTPUTS)

    async def never() -> Outputs:
        raise AssertionError("this was computed before")

    async def body() -> None:
        one, other = ResultCache(), ResultCache()
        for results in (one, other):
            results.configure(ServiceSpec("svc", "m", "prod", cache_entries=10, redis=server.url))
            await soon(partial(shares, results), "Redis answers")
        await one.through(key(1), compute)
        client = redis.asyncio.Redis.from_url(server.url)
        await until_stored(client, key(1))
        deadline_s = time.monotonic() + PATIENCE_S
        while (found := await other.get(key(1))) is None:  # a busy machine is a miss
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.01)
        assert found["y"].tolist() == [0, 1, 2, 3] and found["w"].tolist() == [b"one", b"two"]
        assert other.counts().shared_hits == 1
        _, cached = await other.through(key(1), never)
        assert cached and other.counts().hits == 1
        assert 0 < await client.ttl(PREFIX + key(1)) <= 3_600
        await client.aclose()
        await one.close()
        await other.close()

    asyncio.run(body())


async def until_stored(client: redis.asyncio.Redis, wanted: bytes) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not await client.exists(PREFIX + wanted):
        assert time.monotonic() < deadline_s, "nothing was stored"
        await asyncio.sleep(0.01)


def test_many_questions_at_once_go_together_and_each_gets_its_own_answer(
    server: RedisServer,
) -> None:
    async def body(shared: SharedCache) -> None:
        for number in range(300):
            shared.put(key(number), b"value %d" % number)
        await stored(shared, 299)
        client = redis.asyncio.Redis.from_url(server.url)
        before = (await client.info("commandstats"))["cmdstat_mget"]["calls"]
        answers = await asyncio.gather(*(shared.get(key(number)) for number in range(400)))
        after = (await client.info("commandstats"))["cmdstat_mget"]["calls"]
        await client.aclose()
        assert answers[:300] == [b"value %d" % number for number in range(300)]
        assert answers[300:] == [None] * 100
        assert after - before <= 8

    asyncio.run(with_shared(server.url, body))


def test_a_redis_that_dies_is_left_alone_and_used_again_when_it_is_back(
    server: RedisServer,
) -> None:
    async def body(shared: SharedCache) -> None:
        shared.put(key(1), b"one")
        assert await stored(shared, 1) == b"one"
        server.kill()
        for _ in range(20):
            assert await shared.get(key(1)) is None
        assert not shared.answers and shared.breaker.opened == 1 and shared.errors >= 1
        shared.put(key(2), b"two")
        server.start()
        await soon(lambda: shared.answers, "the cache answers again")
        shared.put(key(3), b"three")
        assert await stored(shared, 3) == b"three"
        assert await shared.get(key(2)) is None

    asyncio.run(with_shared(server.url, body))


def test_nobody_waits_for_a_redis_that_hangs(server: RedisServer) -> None:
    async def body(shared: SharedCache) -> None:
        server.pause()
        try:
            asked = 0
            while shared.answers:
                asked += 1
                assert await shared.get(key(1)) is None
                assert asked < 200, "the breaker does not open"
            # From now on a question is not even sent: the loop makes no turn for it.
            going = shared.get(key(1))
            with pytest.raises(StopIteration):
                going.send(None)
        finally:
            server.resume()
        await soon(lambda: shared.answers, "the cache answers again")

    asyncio.run(with_shared(server.url, body, get_s=0.005, talk_s=0.05))


def test_a_redis_that_lies_is_a_miss(server: RedisServer) -> None:
    async def compute() -> Outputs:
        return {"y": np.array([7])}

    async def body() -> None:
        client = redis.asyncio.Redis.from_url(server.url)
        right = pack(key(1), OUTPUTS)
        await client.set(PREFIX + key(1), b"not an answer at all")
        await client.set(PREFIX + key(2), right)  # another request's answer
        await client.set(PREFIX + key(3), right[:-1])
        await client.rpush(PREFIX + key(4), b"a list")
        results = ResultCache()
        results.configure(ServiceSpec("svc", "m", "prod", cache_entries=10, redis=server.url))
        await soon(lambda: results.counts().shared, "Redis answers")
        for number in range(1, 5):
            outputs, cached = await results.through(key(number), compute)
            assert outputs["y"].tolist() == [7] and not cached
        await client.aclose()
        await results.close()

    asyncio.run(body())


def test_a_redis_that_is_full_or_forbids_everything_is_no_error(tmp_path: Path) -> None:
    require_service(redis_missing())
    folder = tmp_path / "full"

    async def full(shared: SharedCache) -> None:
        for number in range(50):
            shared.put(key(number), bytes(100_000))
        await soon(lambda: shared.errors > 0, "Redis has refused something")
        shared.put(key(99), bytes(2 * 1024 * 1024))
        assert shared.dropped == 1
        assert shared.answers

    with RedisServer(folder, "--maxmemory", "2mb", "--maxmemory-policy", "noeviction") as server:
        asyncio.run(with_shared(server.url, full))

    async def locked(url: str) -> None:
        shared = SharedCache(redis, url, get_s=PATIENT_S)
        shared.start()
        try:
            await soon(lambda: shared.errors > 1, "Redis has refused us")
            assert not shared.answers and await shared.get(key(1)) is None
        finally:
            await shared.close()

    with RedisServer(tmp_path / "locked", "--requirepass", "secret") as server:
        asyncio.run(locked(server.url))


def test_it_ends_also_in_the_middle_of_an_exchange(server: RedisServer) -> None:
    async def body() -> None:
        for turns in range(60):
            shared = SharedCache(redis, server.url)
            shared.start()
            await soon(partial(answers, shared), "the cache answers")
            shared.put(key(1), bytes(1_000))
            for _ in range(turns % 6):
                await asyncio.sleep(0)
            await shared.close()

    asyncio.run(body())


NONSENSE = [
    b":no number\r\n",
    b"*-7\r\n",
    b"$99999999\r\nshort",
    b"\xff\xfe\r\n",
    b"+OK\r\n" * 50,
    b"",
]


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_a_server_that_speaks_nonsense_is_a_miss(nonsense: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1_000):
            writer.write(nonsense)
        writer.close()

    async def body() -> None:
        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        shared = SharedCache(redis, f"redis://127.0.0.1:{port}/0", get_s=PATIENT_S)
        shared.start()
        await soon(lambda: shared.errors > 0 or shared.answers, "it has been tried")
        for number in range(20):
            shared.put(key(number), b"value")
            assert await shared.get(key(number)) is None
        await shared.close()
        server.close()

    asyncio.run(body())


def test_packed_answers_survive_redis_bit_for_bit(server: RedisServer) -> None:
    async def body(shared: SharedCache) -> None:
        value = pack(key(5), OUTPUTS)
        shared.put(key(5), value)
        again = unpack(key(5), await stored(shared, 5))
        assert again["y"].tobytes() == OUTPUTS["y"].tobytes()

    asyncio.run(with_shared(server.url, body))
