"""Answers of a replica that need not be computed again.

    outputs, cached = await results.through(key, compute)

Memory is asked first, then whoever computes the same just now, then Redis, then the model. When
the one who computes fails, those who waited for it compute for themselves: its error may be its
own (a client that hung up, a full queue).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from holdfast.serve.cache.memory import Memory, Outputs
from holdfast.serve.cache.packing import pack, unpack
from holdfast.serve.cache.shared import Shared
from holdfast.serve.protocol.values import Array
from holdfast.serve.records import CacheCounts, Service
from holdfast.wire import logs
from holdfast.wire.errors import Corrupt, MissingExtra, Usage
from holdfast.wire.extras import require_extra
from holdfast.wire.tasks import Tasks

# Answers that a replica keeps, in bytes, however few entries they are: memory is the model's.
CACHE_BYTES_MAX: Final = 256 * 1024 * 1024

log = logs.get(__name__)


class Results:
    """The cache of a replica. Everything happens in its event loop."""

    def __init__(self) -> None:
        self._memory = Memory(0, CACHE_BYTES_MAX)
        self._shared: Shared | None = None
        self._url = ""
        self._computing: dict[bytes, asyncio.Future[Outputs | None]] = {}
        self._closing = Tasks()
        self._hits = 0
        self._shared_hits = 0
        self._joined = 0
        self._misses = 0
        self._errors = 0  # of stores that are gone, and answers that were not one

    @property
    def wanted(self) -> bool:
        """Whether it keeps anything: if not, nobody needs a key."""
        return self._memory.entries_max > 0 or self._shared is not None

    def configure(self, service: Service) -> None:
        """Keep what this service wants kept."""
        self._memory.entries_max = service.cache_entries
        self._memory.shrink()
        if service.redis == self._url:
            return
        self._url = service.redis
        if self._shared is not None:
            self._errors += self._shared.errors
            self._closing.start(self._shared.close(), "cache-redis-end")
        self._shared = _connected(service.redis) if service.redis else None

    async def close(self) -> None:
        if self._shared is not None:
            await self._shared.close()
            self._shared = None
        await self._closing.wait()

    # --- answers ---------------------------------------------------------------------------------

    async def through(
        self, key: bytes, compute: Callable[[], Awaitable[Outputs]]
    ) -> tuple[Outputs, bool]:
        """The outputs under this key, and whether nobody had to compute them for this request."""
        found = self.at_hand(key)
        if found is not None:
            return found, True
        other = self._computing.get(key)
        if other is not None:
            outputs = await asyncio.shield(other)
            if outputs is not None:
                self._joined += 1
                return outputs, True
            self._misses += 1
            return await compute(), False
        mine = self._computing[key] = asyncio.get_running_loop().create_future()
        outputs = None
        try:
            outputs = await self._from_shared(key)
            if outputs is not None:
                self._shared_hits += 1
                return outputs, True
            self._misses += 1
            outputs = await compute()
            self.put(key, outputs)
            return outputs, False
        finally:
            del self._computing[key]
            mine.set_result(outputs)

    def at_hand(self, key: bytes) -> Outputs | None:
        """What is kept under this key in memory."""
        found = self._memory.get(key)
        self._hits += found is not None
        return found

    async def get(self, key: bytes) -> Outputs | None:
        """What is kept under this key, in memory or in Redis."""
        found = self.at_hand(key)
        if found is not None:
            return found
        found = await self._from_shared(key)
        if found is not None:
            self._shared_hits += 1
        else:
            self._misses += 1
        return found

    def put(self, key: bytes, outputs: Mapping[str, Array]) -> None:
        """Keep these."""
        self._memory.put(key, outputs)
        if self._shared is not None and self._shared.answers:
            try:
                self._shared.put(key, pack(key, outputs))
            except Usage as error:  # a type that cannot be written down: it stays in memory
                self._errors += 1
                log.debug("an answer cannot be shared", error=str(error))

    async def _from_shared(self, key: bytes) -> Outputs | None:
        if self._shared is None or not self._shared.answers:
            return None
        value = await self._shared.get(key)
        if value is None:
            return None
        try:
            outputs = unpack(key, value)
        except Corrupt as error:
            self._errors += 1
            log.warning("the shared cache gave something else; computing instead", error=str(error))
            return None
        self._memory.put(key, outputs)
        return outputs

    def counts(self) -> CacheCounts:
        shared = self._shared
        return CacheCounts(
            hits=self._hits,
            shared_hits=self._shared_hits,
            joined=self._joined,
            misses=self._misses,
            errors=self._errors + (shared.errors if shared is not None else 0),
            entries=len(self._memory),
            bytes=self._memory.bytes,
            shared=shared is not None and shared.answers,
        )


def _connected(url: str) -> Shared | None:
    """A store that begins to answer by itself; None, with a line in the log, if there can be none:
    a cache that is missing is no reason not to serve."""
    try:
        redis = require_extra("redis", "redis")
        require_extra("redis.asyncio", "redis")
        shared = Shared(redis, url)
    except (MissingExtra, ValueError) as error:
        log.warning("there is no shared cache", error=str(error))
        return None
    shared.start()
    return shared
