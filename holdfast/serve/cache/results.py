"""Answers of a replica that need not be computed again.

    outputs, cached = await results.through(key, compute)

LocalCache is asked first, then whoever computes the same just now, then Redis, then the model. When
the one who computes fails, those who waited for it compute for themselves: its error may be its
own (a client that hung up, a full queue).
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from hashlib import blake2b
from typing import Final

import msgspec
import numpy as np

from holdfast.serve.cache.shared import SharedCache
from holdfast.serve.protocol.tensors import (
    DTYPES,
    KEY_BYTES,
    Array,
    as_bytes,
    from_raw,
    packed_bytes,
)
from holdfast.serve.records import CacheCounts, ServiceSpec
from holdfast.system import logs
from holdfast.system.extras import require_extra
from holdfast.system.tasks import Tasks
from holdfast.wire.errors import Corrupt, MissingExtra, Usage

# Answers that a replica keeps, in bytes, however few entries they are: memory is the model's.
CACHE_BYTES_MAX: Final = 256 * 1024 * 1024

log = logs.get(__name__)


class ResultCache:
    """The cache of a replica. Everything happens in its event loop."""

    def __init__(self) -> None:
        self._memory = LocalCache(0, CACHE_BYTES_MAX)
        self._shared: SharedCache | None = None
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

    def configure(self, service: ServiceSpec) -> None:
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
        self, key: bytes, compute: Callable[[], Awaitable[Outputs]], version: int = 0
    ) -> tuple[Outputs, bool]:
        """The outputs under this key, and whether nobody had to compute them for this request.
        `version`: of the model, by which they are dropped."""
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
            outputs = await self._from_shared(key, version)
            if outputs is not None:
                self._shared_hits += 1
                return outputs, True
            self._misses += 1
            outputs = await compute()
            self.put(key, outputs, version)
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

    def put(self, key: bytes, outputs: Mapping[str, Array], version: int = 0) -> None:
        """Keep these."""
        self._memory.put(key, outputs, version)
        if self._shared is not None and self._shared.answers:
            try:
                self._shared.put(key, pack(key, outputs))
            except Usage as error:  # a type that cannot be written down: it stays in memory
                self._errors += 1
                log.debug("an answer cannot be shared", error=str(error))

    def drop(self, version: int) -> int:
        """Nobody will ask for this version any more: how many of its answers were kept. Those in
        Redis go by their age."""
        return self._memory.drop(version)

    async def _from_shared(self, key: bytes, version: int = 0) -> Outputs | None:
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
        self._memory.put(key, outputs, version)
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


def _connected(url: str) -> SharedCache | None:
    """A store that begins to answer by itself; None, with a line in the log, if there can be none:
    a cache that is missing is no reason not to serve."""
    try:
        redis = require_extra("redis", "redis")
        require_extra("redis.asyncio", "redis")
        shared = SharedCache(redis, url)
    except (MissingExtra, ValueError) as error:
        log.warning("there is no shared cache", error=str(error))
        return None
    shared.start()
    return shared


# --- memory ---------------------------------------------------------------------------------------
# The newest answers, bounded by entries and by bytes; the one that was not asked for the longest
# goes first. Pure.


# What an entry costs beside its arrays: dictionaries and array heads.
CACHE_ENTRY_BYTES: Final = 512

Outputs = dict[str, Array]
_OBJECT_BYTES: Final = 40  # what Python adds to a bytes object and its place in an array


def size_of(outputs: Mapping[str, Array]) -> int:
    """What keeping these costs."""
    total = CACHE_ENTRY_BYTES
    for array in outputs.values():
        if array.dtype == object:
            elements = array.reshape(-1).tolist()
            total += sum(len(as_bytes(element)) + _OBJECT_BYTES for element in elements)
        else:
            total += array.nbytes
    return total


class LocalCache:
    """Outputs by key. What it gives is shared and read-only; what it takes is copied, because an
    output may be a few rows of a large batch, which would stay for their sake."""

    def __init__(self, entries_max: int, bytes_max: int) -> None:
        self.entries_max = entries_max
        self.bytes_max = bytes_max
        self.bytes = 0
        self._held: OrderedDict[bytes, tuple[Outputs, int, int]] = OrderedDict()
        self._keys: dict[int, set[bytes]] = {}  # by version

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: bytes) -> Outputs | None:
        found = self._held.get(key)
        if found is None:
            return None
        self._held.move_to_end(key)
        return found[0]

    def put(self, key: bytes, outputs: Mapping[str, Array], version: int = 0) -> None:
        size = size_of(outputs)
        if size > self.bytes_max or not self.entries_max:
            return
        kept = {name: array.copy() for name, array in outputs.items()}
        for array in kept.values():
            array.flags.writeable = False
        if key in self._held:
            self._remove(key)
        self._held[key] = (kept, size, version)
        self._keys.setdefault(version, set()).add(key)
        self.bytes += size
        self.shrink()

    def drop(self, version: int) -> int:
        """Let go of all of this version; how many they were."""
        keys = list(self._keys.get(version, ()))
        for key in keys:
            self._remove(key)
        return len(keys)

    def shrink(self) -> None:
        """Let go of what is beyond the bounds."""
        while len(self._held) > self.entries_max or self.bytes > self.bytes_max:
            self._remove(next(iter(self._held)))

    def _remove(self, key: bytes) -> None:
        _, size, version = self._held.pop(key)
        self.bytes -= size
        keys = self._keys[version]
        keys.discard(key)
        if not keys:
            del self._keys[version]


# --- packing --------------------------------------------------------------------------------------
# Outputs as bytes for a store that may lose, mix up or damage them. Pure.
#
# The bytes carry their own key and a checksum: what comes back for another key, cut off, changed or
# written by another version of Holdfast is `Corrupt`, never an answer.


_MAGIC: Final = b"hfc1"
_SUM_BYTES: Final = 16
_HEAD_BYTES: Final = len(_MAGIC) + KEY_BYTES + _SUM_BYTES


class _PackedTensor(msgspec.Struct, array_like=True):
    name: str
    dtype: str
    shape: tuple[int, ...]
    raw: bytes


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[_PackedTensor]).decode
# An array's own type in the raw form. BF16 is a float32 while it is ours.
_NAMES: Final = {dtype.str: name for name, dtype in DTYPES.items() if name != "BF16"}


def pack(key: bytes, outputs: Mapping[str, Array]) -> bytes:
    """The bytes of outputs; `Usage` for an array of a type that no datatype has."""
    tensors = []
    for name, array in outputs.items():
        if array.dtype.str not in _NAMES:
            raise Usage(f"output {name!r} is an array of {array.dtype}", why="no datatype has it")
        raw = packed_bytes(array) if array.dtype == object else array.tobytes()
        tensors.append(_PackedTensor(name, array.dtype.str, array.shape, raw))
    body = _encode(tensors)
    return b"".join((_MAGIC, key, _sum(key, body), body))


def unpack(key: bytes, value: bytes) -> dict[str, Array]:
    """The outputs that `pack` wrote for this key; `Corrupt` if these bytes are not that."""
    head, body = value[:_HEAD_BYTES], value[_HEAD_BYTES:]
    if head != b"".join((_MAGIC, key, _sum(key, body))):
        raise Corrupt("the cache gave other bytes than it was given", why="their checksum differs")
    try:
        return {tensor.name: _array(tensor) for tensor in _decode(body)}
    except (msgspec.MsgspecError, Usage, KeyError) as error:
        raise Corrupt("the cache gave what is not an answer", why=str(error)) from error


def _array(tensor: _PackedTensor) -> Array:
    datatype = _NAMES[tensor.dtype]
    shape = tensor.shape
    if datatype == "BYTES":
        count = math.prod(shape)
        return from_raw(tensor.name, datatype, shape, count, memoryview(tensor.raw))
    return np.frombuffer(tensor.raw, DTYPES[datatype]).reshape(shape)


def _sum(key: bytes, body: bytes) -> bytes:
    return blake2b(body, digest_size=_SUM_BYTES, key=key).digest()
