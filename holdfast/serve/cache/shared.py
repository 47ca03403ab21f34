"""A Redis that replicas share: dead, slow, full or lying, it is a miss and never an error.

One task talks to it. Questions that come while an exchange is under way go together in the next
one; so do answers to keep. A request waits a few milliseconds at most, and not at all while the
breaker is open: then only the task asks, with a ping, whether Redis is back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from holdfast.system import logs
from holdfast.system.backoff import Backoff
from holdfast.system.tasks import end, start_task

# A request waits so long for Redis. Most models compute in less.
REDIS_GET_S: Final = 0.005
# One exchange with Redis, whoever still waits for it; and a new connection, TLS included.
REDIS_TALK_S: Final = 0.1
REDIS_CONNECT_S: Final = 1.0
# So many failures one after the other, and nobody asks Redis until it answers a ping again.
REDIS_FAILURES_MAX: Final = 5
REDIS_PAUSE_S: Final = 0.5
REDIS_PAUSE_S_MAX: Final = 15.0
# Questions and answers that wait to be sent; more is a Redis that is too slow to be of use.
REDIS_WAITING_MAX: Final = 1_024
REDIS_WAITING_BYTES_MAX: Final = 32 * 1024 * 1024
# In one exchange.
REDIS_BATCH_MAX: Final = 128
# A larger answer is not given to Redis: everybody else would wait for its transfer.
REDIS_VALUE_BYTES_MAX: Final = 1024 * 1024
# Kept in Redis so long: versions that nobody serves any more go by themselves.
REDIS_KEEP_S: Final = 3_600

PREFIX: Final = b"holdfast:answer:"

log = logs.get(__name__)


class SharedCache:
    """Bytes by key in a Redis. Begins to talk with `start`, in the running event loop."""

    def __init__(
        self,
        redis: ModuleType,
        url: str,
        *,
        get_s: float = REDIS_GET_S,
        talk_s: float = REDIS_TALK_S,
    ) -> None:
        self.url = url
        self.errors = 0  # exchanges that failed, and answers that were refused
        self.dropped = 0  # not sent: too many waited, or too large
        self.breaker = RedisBreaker(REDIS_FAILURES_MAX, REDIS_PAUSE_S, REDIS_PAUSE_S_MAX)
        self._get_s = get_s
        self._talk_s = talk_s
        self._client: Any = redis.asyncio.Redis.from_url(
            url,
            socket_timeout=talk_s,
            socket_connect_timeout=REDIS_CONNECT_S,
            retry=None,  # we have our own patience
            single_connection_client=False,
            max_connections=2,
        )
        self._gets: deque[tuple[bytes, asyncio.Future[bytes | None]]] = deque()
        self._puts: deque[tuple[bytes, bytes]] = deque()
        self._put_bytes = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._ending = False

    def start(self) -> None:
        self._task = start_task(self._run(), "cache-redis")

    async def close(self) -> None:
        self._ending = True  # the client may swallow a cancellation
        if self._task is not None:
            await end(self._task)
        self._give_up()
        with contextlib.suppress(Exception):  # whatever it says: nobody talks to it any more
            await self._client.aclose()

    @property
    def answers(self) -> bool:
        """Whether it is asked at all."""
        return self.breaker.closed

    async def get(self, key: bytes) -> bytes | None:
        """What Redis has under this key; None as well if it does not say so soon."""
        if not self.breaker.closed or len(self._gets) >= REDIS_WAITING_MAX:
            return None
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes | None] = loop.create_future()
        patience = loop.call_later(self._get_s, _resolve, future, None)
        self._gets.append((key, future))
        self._wake.set()
        try:
            return await future
        finally:
            patience.cancel()

    def put(self, key: bytes, value: bytes) -> None:
        """Keep it, if that is possible now."""
        too_many = len(self._puts) >= REDIS_WAITING_MAX
        too_large = len(value) > REDIS_VALUE_BYTES_MAX
        if too_many or too_large or self._put_bytes + len(value) > REDIS_WAITING_BYTES_MAX:
            self.dropped += 1
            return
        if self.breaker.closed:
            self._puts.append((key, value))
            self._put_bytes += len(value)
            self._wake.set()

    # --- the task --------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self._ending:
            if not self.breaker.closed:
                await self._probe()
                continue
            await self._wake.wait()
            self._wake.clear()
            while self.breaker.closed and (self._gets or self._puts) and not self._ending:
                await self._exchange()
            if not self.breaker.closed:
                log.warning(
                    "the shared cache does not answer; going on without it", url=self._shown
                )
                self._give_up()

    async def _probe(self) -> None:
        """Ask whether Redis is there; after a pause, if it is not."""
        if await self._answer(self._client.ping, REDIS_CONNECT_S) is not None:
            self.breaker.succeeded()
            log.info("the shared cache answers", url=self._shown)
            return
        self.breaker.failed()
        if not self._ending:
            await asyncio.sleep(self.breaker.pause_s)

    async def _exchange(self) -> None:
        gets = [self._gets.popleft() for _ in range(min(len(self._gets), REDIS_BATCH_MAX))]
        gets = [(key, future) for key, future in gets if not future.done()]
        puts = [self._puts.popleft() for _ in range(min(len(self._puts), REDIS_BATCH_MAX))]
        self._put_bytes -= sum(len(value) for _, value in puts)
        if not gets and not puts:
            return
        replies = await self._answer(lambda: self._pipelined(gets, puts), self._talk_s)
        late = False
        for (_, future), reply in zip(gets, self._values(replies, len(gets)), strict=True):
            late = late or future.done()
            _resolve(future, reply)
        if replies is None or late:
            self.errors += late
            self.breaker.failed()
        else:
            self.breaker.succeeded()

    async def _pipelined(
        self,
        gets: list[tuple[bytes, asyncio.Future[bytes | None]]],
        puts: list[tuple[bytes, bytes]],
    ) -> Any:
        async with self._client.pipeline(transaction=False) as pipe:
            if gets:
                pipe.mget([PREFIX + key for key, _ in gets])
            for key, value in puts:
                pipe.set(PREFIX + key, value, ex=REDIS_KEEP_S)
            return await pipe.execute(raise_on_error=False)

    def _values(self, replies: Any, wanted: int) -> list[bytes | None]:
        """The values of the questions. A refusal (full, no permission) is counted, and a miss."""
        nothing: list[bytes | None] = [None] * wanted
        if replies is None:
            return nothing
        self.errors += sum(isinstance(reply, Exception) for reply in replies)
        found = replies[0] if wanted and replies else None
        if not isinstance(found, list) or len(found) != wanted:
            return nothing
        return [value if isinstance(value, bytes) else None for value in found]

    async def _answer(self, ask: Callable[[], Any], within_s: float) -> Any:
        """What Redis answered; None if it did not, and then the connection begins anew."""
        try:
            async with asyncio.timeout(within_s):
                return await ask()
        except Exception as error:  # a server that speaks nonsense makes the client raise anything
            self.errors += 1
            log.debug("the shared cache failed", error=str(error))
        with contextlib.suppress(Exception):
            await self._client.connection_pool.disconnect()
        return None

    def _give_up(self) -> None:
        """Nobody waits for what will not come."""
        while self._gets:
            _resolve(self._gets.popleft()[1], None)
        self._puts.clear()
        self._put_bytes = 0

    @property
    def _shown(self) -> str:
        """The address, without a password."""
        return self.url.rpartition("@")[2]


def _resolve(future: asyncio.Future[bytes | None], value: bytes | None) -> None:
    if not future.done():
        future.set_result(value)


# --- breaker --------------------------------------------------------------------------------------
# When to leave a server alone that does not answer. Pure: time is given.


class RedisBreaker:
    """Open: nobody asks. It is open at first, and after `failures_max` failures one after the
    other. While it is open somebody tries now and then, ever less often; a success closes it."""

    def __init__(self, failures_max: int, pause_s: float, pause_s_max: float) -> None:
        self._failures_max = failures_max
        self._tries = Backoff(pause_s, pause_s_max)
        self._failures = 0
        self.pause_s = self._tries.failed()  # how long to wait before the next try
        self.opened = 0  # how often it opened
        self.closed = False

    def succeeded(self) -> None:
        self.closed = True
        self._failures = 0
        self._tries.succeeded()
        self.pause_s = self._tries.failed()

    def failed(self) -> None:
        if not self.closed:  # a try that failed
            self.pause_s = self._tries.failed()
            return
        self._failures += 1
        if self._failures >= self._failures_max:
            self.closed = False
            self.opened += 1
            self._failures = 0
