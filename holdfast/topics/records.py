"""What is read: records, and the places in a topic where they lie."""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.topics.codecs import RecordCodec
from holdfast.wire.errors import Corrupt, HoldfastError

_UNREAD: Any = object()


class TopicPosition(NamedTuple):
    """A place in a topic. Of a record that was written: where it lies. To commit or to seek: the
    next offset that is to be read."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int | None = None


class Record:
    """One record. `value` is decoded when it is first asked for: a record that its codec does not
    take spoils no other, and raises `Corrupt` where it is used. Of headers that have the same name
    the last is kept; `at` is its time in milliseconds since 1970."""

    __slots__ = (
        "_codec",
        "_value",
        "at",
        "headers",
        "key",
        "leader_epoch",
        "offset",
        "partition",
        "raw",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        key: bytes | None,
        raw: bytes | None,
        headers: dict[str, bytes | None],
        at: int,
        leader_epoch: int | None,
        codec: RecordCodec,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.key = key
        self.raw = raw
        self.headers = headers
        self.at = at
        self.leader_epoch = leader_epoch
        self._codec = codec
        self._value = None if raw is None else _UNREAD

    @property
    def value(self) -> Any:
        if self._value is _UNREAD:
            assert self.raw is not None
            try:
                self._value = self._codec.decode(self.raw)
            except HoldfastError:
                raise
            except Exception as error:  # a codec is anybody's, and so is what it raises
                raise Corrupt(
                    f"{self} cannot be decoded",
                    why=f"{type(error).__name__}: {error}",
                    fix="read it with the codec it was written with; `record.raw` has its bytes",
                ) from error
        return self._value

    @property
    def position(self) -> TopicPosition:
        """Where a reader goes on that is done with this record."""
        return TopicPosition(self.topic, self.partition, self.offset + 1, self.leader_epoch)

    def __str__(self) -> str:
        return f"record {self.offset} of {self.topic}[{self.partition}]"

    def __repr__(self) -> str:
        return f"<{self}, key {self.key!r}>"
