"""Fetch sessions: a consumer that asks again says only what is new, and hears only what changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from holdfast.topics.broker.protocol.codes import ErrorCode, KafkaError

# `max.incremental.fetch.session.cache.slots` of Kafka.
SESSIONS_MAX: Final = 1_000
# A session that was used less than so long ago is not given to another client.
SESSION_IDLE_S: Final = 120.0
PARTITIONS_MAX: Final = 100_000
FINAL_EPOCH: Final = -1
INITIAL_EPOCH: Final = 0
_EPOCH_MAX: Final = 2**31 - 1


class WantedPartition(NamedTuple):
    """What a consumer wants of a partition."""

    fetch_offset: int
    bytes_max: int
    leader_epoch: int


class SentOffsets(NamedTuple):
    """What it heard last of a partition."""

    high_watermark: int
    last_stable_offset: int
    log_start: int


Key = tuple[str, bytes, int]  # topic by name, by id (zeros: by name), partition


@dataclass(slots=True)
class FetchSession:
    """A consumer's partitions, in the order in which they are served next."""

    session_id: int
    epoch: int
    used_s: float
    wanted: dict[Key, WantedPartition] = field(default_factory=dict)
    told: dict[Key, SentOffsets] = field(default_factory=dict)

    def served(self, key: Key) -> None:
        """It got records: the others come first the next time."""
        if key in self.wanted:
            self.wanted[key] = self.wanted.pop(key)


class Sessions:
    """All sessions, a bounded number of them."""

    def __init__(self, most: int = SESSIONS_MAX) -> None:
        self._most = most
        self._by_id: dict[int, FetchSession] = {}  # the one used longest ago first

    def __len__(self) -> int:
        return len(self._by_id)

    def begin(
        self, new_id: int, wanted: dict[Key, WantedPartition], now_s: float
    ) -> FetchSession | None:
        """A new session; None: there is no place for one, and the client asks in full again."""
        if new_id <= 0 or new_id in self._by_id or len(wanted) > PARTITIONS_MAX:
            return None
        if len(self._by_id) >= self._most:
            oldest = next(iter(self._by_id.values()))
            if now_s - oldest.used_s < SESSION_IDLE_S:
                return None
            del self._by_id[oldest.session_id]
        session = FetchSession(new_id, 1, now_s, wanted)
        self._by_id[new_id] = session
        return session

    def resume(
        self,
        session_id: int,
        epoch: int,
        changed: dict[Key, WantedPartition],
        forgotten: list[Key],
        now_s: float,
    ) -> FetchSession:
        """The session of a client that says what changed since it asked last."""
        session = self._by_id.get(session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        session.epoch = 1 if epoch == _EPOCH_MAX else epoch + 1
        session.used_s = now_s
        self._by_id[session_id] = self._by_id.pop(session_id)
        for key in forgotten:
            session.wanted.pop(key, None)
            session.told.pop(key, None)
        session.wanted.update(changed)
        return session

    def end(self, session_id: int) -> None:
        self._by_id.pop(session_id, None)
