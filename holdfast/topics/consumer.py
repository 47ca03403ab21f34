"""Reading topics: as a member of a group, which shares the partitions, or alone, which reads all.

Nothing is committed that was not asked for, and only by the member that reads the partition now:
an old member's commit would set the group back, or past records that nobody has seen.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal

from holdfast.topics.address import TopicsAddress
from holdfast.topics.asking import metadata
from holdfast.topics.codecs import BYTES, RecordCodec
from holdfast.topics.failures import is_named, translate
from holdfast.topics.kafka import (
    ANSWER_S,
    TOPIC_KNOWN_S,
    WAIT_S,
    ForkGuard,
    confluent,
    opened,
)
from holdfast.topics.records import Record, TopicPosition
from holdfast.wire.errors import Conflict, HoldfastError, Missing, Unavailable, Usage

Start = Literal["earliest", "latest"] | Sequence[TopicPosition]
Revoked = Callable[[list[tuple[str, int]]], None]

POLL_RECORDS_MAX: Final = 500
# What librdkafka reads ahead.
AHEAD_BYTES_MAX: Final = 16 << 20
# A member that says nothing for so long is out of its group.
SESSION_S: Final = 30.0
# A member that has not polled for so long is out of its group.
POLL_EVERY_S: Final = 300.0
# Brokers that do not answer for so long are told to whoever reads.
AWAY_S: Final = 60.0
# How often one that reads alone looks for new partitions.
PARTITIONS_S: Final = 30.0
FETCH_WAIT_MS: Final = 100
_PROBE_S: Final = 2.0
# What a member hears that is not one any more.
_NOT_A_MEMBER: Final = (
    "ILLEGAL_GENERATION",
    "UNKNOWN_MEMBER_ID",
    "REBALANCE_IN_PROGRESS",
    "ASSIGNMENT_LOST",
    "STALE_MEMBER_EPOCH",
)
_UNKNOWN_TOPIC: Final = ("UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC", "UNKNOWN_PARTITION")


class Consumer:
    """Reads records. Any thread may call it, one at a time.

    With a group, `commit` says how far its members are; partitions move when members come and go,
    and what was read and not committed is read again by the next owner. Without one, it reads every
    partition by itself, and commits nothing. `on_revoked` is called, inside `poll`, before
    partitions are given up: what is committed there still counts.
    """

    def __init__(
        self,
        address: TopicsAddress,
        topics: Sequence[str],
        *,
        group: str | None = None,
        start: Start = "earliest",
        committed: bool = True,
        static_id: str | None = None,
        codec: RecordCodec = BYTES,
        on_revoked: Revoked | None = None,
        session_s: float = SESSION_S,
        poll_every_s: float = POLL_EVERY_S,
        away_s: float = AWAY_S,
    ) -> None:
        _check_topics(topics, group, start)
        self.topics = tuple(topics)
        self.group = group
        self._address = address
        self._codec = codec
        self._on_revoked = on_revoked
        self._away_s = away_s
        self._start = start
        self._lock = threading.RLock()
        self._closing = False
        self._away_since_s = 0.0
        self._unknown_since_s = 0.0
        self._unserved: dict[tuple[str, int], float] = {}  # since when no broker has them
        self._served_looked_s = time.monotonic()
        self._looked_s = 0.0
        self._later: HoldfastError | None = None
        self._settle: Callable[[], object] | None = None
        self._owned: set[tuple[str, int]] = set()
        self._next: dict[tuple[str, int], TopicPosition] = {}  # after what was read
        self._done: dict[tuple[str, int], TopicPosition] = {}  # where an undone read begins
        asked = {
            **address.client_settings(),
            **_settings(start, committed, session_s, poll_every_s),
            "group.id": address.full_name(group or "no-group"),
            "error_cb": self._note,
        }
        if static_id is not None:
            asked["group.instance.id"] = static_id
        self._kafka = opened("Consumer", asked)
        self._guard = ForkGuard("consumer", self._kafka)
        if group is not None:
            self._kafka.subscribe(
                [address.full_name(topic) for topic in topics],
                on_assign=self._assigned,
                on_revoke=self._revoked,
                on_lost=self._lost,
            )

    # --- reading ----------------------------------------------------------------------------------

    def poll(self, timeout_s: float = 1.0, records_max: int = POLL_RECORDS_MAX) -> list[Record]:
        """The next records: at least one, as soon as there is one; none when the time is over."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            with self._lock:
                self._check()
                if self._later is not None:
                    error, self._later = self._later, None
                    raise error
                self._settle_now()
                self._look_for_partitions()
                self._check_served()
                left_s = max(0.0, deadline_s - time.monotonic())
                first = self._kafka.poll(min(left_s, WAIT_S))
                if first is not None:
                    more = self._kafka.consume(records_max - 1, 0) if records_max > 1 else []
                    found = self._taken([first, *more])
                    if found:
                        return found
                self._check_reach()
            if left_s <= 0 or self._closing:
                return []

    def __iter__(self) -> Iterator[Record]:
        """Record by record, for as long as it is open. Between two records the group may be dealt
        anew: one that was given out before may then be another member's."""
        while not self._closing:
            yield from self.poll(1.0, records_max=1)

    # --- how far it is ----------------------------------------------------------------------------

    def commit(
        self, *read: Record | TopicPosition | Iterable[Record | TopicPosition], note: str = ""
    ) -> list[TopicPosition]:
        """The group is done with these records, and what is before them; with a position: it goes
        on there. Without any: with everything that was read. Returns when that is durable. `note`:
        a few words that are kept with it (`committed_note`).

        What is another member's by now is not committed, but returned: the other member reads it
        again."""
        with self._lock:
            self._check()
            if self.group is None:
                raise Usage(
                    "a consumer without a group commits nothing",
                    fix="open it with group=…, or keep its positions() yourself",
                )
            wanted = _furthest(read) if read else dict(self._next)
            ours = {place: at for place, at in wanted.items() if place in self._owned}
            theirs = [at for place, at in wanted.items() if place not in ours]
            if not ours:
                return theirs
            try:
                offsets = self._wire(ours.values(), note)
                answers = self._kafka.commit(offsets=offsets, asynchronous=False)
            except confluent().KafkaException as error:
                if is_named(error, *_NOT_A_MEMBER):
                    return list(wanted.values())
                raise translate(error, f"group {self.group!r} cannot commit") from error
            for one in answers or ():
                if one.error is not None:
                    raise translate(one.error, f"group {self.group!r} cannot commit")
            self.mark_done(ours.values())
            return theirs

    def committed_note(self, at: TopicPosition) -> str:
        """What was noted when the group committed exactly this position; empty: it is elsewhere."""
        with self._lock:
            self._check()
            try:
                (found,) = self._kafka.committed(self._wire([at]), timeout=ANSWER_S)
            except confluent().KafkaException as error:
                raise translate(error, f"group {self.group!r} cannot be read") from error
            return str(found.metadata or "") if found.offset == at.offset else ""

    def positions(self) -> list[TopicPosition]:
        """Where it goes on, of each partition that it has read from."""
        with self._lock:
            return sorted(at for place, at in self._next.items() if place in self._owned)

    def partitions(self) -> list[tuple[str, int]]:
        """Topic and number of what it reads now."""
        with self._lock:
            return sorted(self._owned)

    def seek(self, *to: Record | TopicPosition) -> None:
        """Read on from there: again from a record, or at a position."""
        with self._lock:
            self._check()
            for one in to:
                place = one.topic, one.partition
                at = TopicPosition(*place, one.offset)
                self._seek(at)
                self._next[place] = at
                self._done[place] = at

    def rewind(self) -> None:
        """Read again what was read and not committed: what was done with it did not last."""
        with self._lock:
            self._check()
            for place, at in self._done.items():
                if place in self._owned and self._next.get(place, at).offset != at.offset:
                    self._seek(at)
                    self._next[place] = at

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Read these no further, or none; it stays a member meanwhile as long as it polls."""
        self._kafka.pause(self._chosen(partitions))

    def resume(self, *partitions: tuple[str, int]) -> None:
        self._kafka.resume(self._chosen(partitions))

    # --- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the group; iterating ends. What is not committed is read again by others."""
        self._guard.check()
        self._closing = True
        with self._lock:
            kafka, self._kafka = self._kafka, None
            if kafka is not None:
                self._owned.clear()
                kafka.close()
                self._guard.release()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        return self._closing

    # --- for transactions -------------------------------------------------------------------------

    def offsets_on_wire(self) -> tuple[list[TopicPosition], list[Any], Any]:
        """Positions after what was read, the same as librdkafka has them, and who commits them."""
        with self._lock:
            self._check()
            at = self.positions()
            return at, self._wire(at), self._kafka.consumer_group_metadata()

    def mark_done(self, positions: Iterable[TopicPosition]) -> None:
        """These are committed: a rewind goes back to them and not further."""
        with self._lock:
            for at in positions:
                self._done[at.topic, at.partition] = at

    def settle_first(self, settle: Callable[[], object]) -> None:
        """Whether what it has read is committed is not known. Before it reads on, `settle` is
        called, and then it goes on where its group is."""
        with self._lock:
            self._settle = settle

    # --- inside -----------------------------------------------------------------------------------

    def _check(self) -> None:
        self._guard.check()
        if self._kafka is None:
            raise Usage("the consumer is closed", fix="open another one with cluster.consumer()")

    def _settle_now(self) -> None:
        if self._settle is None:
            return
        self._settle()
        places = [TopicPosition(*place, 0) for place in sorted(self._owned)]
        try:
            held = self._kafka.committed(self._wire(places), ANSWER_S)
        except confluent().KafkaException as error:
            raise translate(error, f"how far group {self.group!r} is, is not known") from error
        self._settle = None
        for place, one in zip(places, held, strict=True):
            if one.offset >= 0:
                self._done[place.topic, place.partition] = place._replace(offset=one.offset)
        self.rewind()

    def _taken(self, messages: Iterable[Any]) -> list[Record]:
        found: list[Record] = []
        for message in messages:
            if (error := message.error()) is not None:
                try:
                    self._judge(error)
                except HoldfastError as failure:
                    # Records that came before it are given out first: `_next` is behind them.
                    self._later = self._later or failure
                continue
            self._away_since_s = self._unknown_since_s = 0.0
            record = self._record(message)
            place = record.topic, record.partition
            self._unserved.pop(place, None)
            if place not in self._done:
                self._done[place] = TopicPosition(*place, record.offset)
            self._next[place] = record.position
            found.append(record)
        if self._later is not None and not found:
            error, self._later = self._later, None
            raise error
        return found

    def _record(self, message: Any) -> Record:
        _, at = message.timestamp()
        return Record(
            self._address.own_name(message.topic()) or "",
            message.partition(),
            message.offset(),
            key=message.key(),
            raw=message.value(),
            headers=dict(message.headers() or ()),
            at=at,
            leader_epoch=message.leader_epoch(),
            codec=self._codec,
        )

    def _judge(self, error: Any) -> None:
        """What came instead of a record: raised, unless it passes by itself."""
        if is_named(error, *_UNKNOWN_TOPIC):
            self._unknown_since_s = self._unknown_since_s or time.monotonic()
        elif not error.retriable() or error.fatal():
            raise translate(error, f"{self._reading} cannot be read")

    def _note(self, error: Any) -> None:
        """librdkafka has something to say that belongs to no record."""
        if is_named(error, "ALL_BROKERS_DOWN"):
            self._away_since_s = self._away_since_s or time.monotonic()

    def _check_reach(self) -> None:
        """Who waits for records that cannot come is told so, after a while."""
        now_s = time.monotonic()
        if self._unknown_since_s and now_s - self._unknown_since_s > TOPIC_KNOWN_S:
            self._unknown_since_s = 0.0
            for topic in self.topics:
                self._partitions_of(topic)
        if self._away_since_s and now_s - self._away_since_s > self._away_s:
            try:
                self._kafka.list_topics(timeout=_PROBE_S)
            except confluent().KafkaException as error:
                raise Unavailable(
                    f"{self._reading} cannot be read: no broker has answered for "
                    f"{now_s - self._away_since_s:.0f} s",
                    why=str(error.args[0].str()),
                    fix="look whether the brokers run; `poll` may be called again",
                ) from error
            self._away_since_s = 0.0

    def _check_served(self) -> None:
        """Say which partition no broker can give: librdkafka asks for it for ever, and says nothing
        (Kafka's error is KAFKA_STORAGE_ERROR, of a damaged log or a disk that is gone)."""
        now_s = time.monotonic()
        if now_s - self._served_looked_s < self._away_s / 2:
            return
        self._served_looked_s = now_s
        missing = set()
        for topic in sorted({topic for topic, _ in self._owned}):
            wire = self._address.full_name(topic)
            try:
                found = self._kafka.list_topics(wire, timeout=_PROBE_S).topics[wire]
            except confluent().KafkaException:
                return  # that brokers are away is found out elsewhere
            for number, one in found.partitions.items():
                if (topic, number) in self._owned and (one.leader < 0 or not one.isrs):
                    missing.add((topic, number))
        self._unserved = {place: self._unserved.get(place, now_s) for place in missing}
        for (topic, number), since_s in self._unserved.items():
            if now_s - since_s >= self._away_s / 2:
                self._unserved.clear()
                at = self._next.get((topic, number))
                after = f" after offset {at.offset - 1}" if at is not None and at.offset else ""
                raise Unavailable(
                    f"{topic}[{number}] cannot be read{after}: no broker has had it for"
                    f" {now_s - since_s:.0f} s",
                    why="its log is damaged there, or the disk that has it is gone",
                    fix="look into the brokers' logs: they name the file and what to do",
                )

    @property
    def _reading(self) -> str:
        return ", ".join(repr(topic) for topic in self.topics)

    def _partitions_of(self, topic: str) -> list[int]:
        wire = self._address.full_name(topic)
        found = metadata(self._kafka, wire, f"topic {topic!r} cannot be read").topics[wire]
        if found.error is not None:
            raise translate(found.error, f"topic {topic!r} cannot be read")
        return sorted(found.partitions)

    # --- whose partitions -------------------------------------------------------------------------

    def _look_for_partitions(self) -> None:
        """Of one that reads alone: take the partitions that there are by now."""
        now_s = time.monotonic()
        if self.group is not None or (self._looked_s and now_s - self._looked_s < PARTITIONS_S):
            return
        if isinstance(self._start, str):
            fresh = self._new_partitions()
        else:
            fresh = [] if self._looked_s else list(self._start)
        self._looked_s = now_s
        if fresh:
            self._kafka.incremental_assign(self._wire(fresh))
            self._owned |= {(at.topic, at.partition) for at in fresh}

    def _new_partitions(self) -> list[TopicPosition]:
        begin, end = confluent().OFFSET_BEGINNING, confluent().OFFSET_END
        # One that came while we were reading is read from its first record.
        at = begin if self._looked_s or self._start == "earliest" else end
        deadline_s = time.monotonic() + TOPIC_KNOWN_S
        while True:
            try:
                there = [
                    (topic, each) for topic in self.topics for each in self._partitions_of(topic)
                ]
            except Missing:
                if self._looked_s or time.monotonic() > deadline_s or self._closing:
                    raise
                time.sleep(WAIT_S)  # Kafka makes topics, and then tells its brokers
            else:
                return [TopicPosition(*one, at) for one in there if one not in self._owned]

    def _assigned(self, _consumer: Any, partitions: list[Any]) -> None:
        for place in self._places(partitions):
            self._owned.add(place)
            self._next.pop(place, None)
            self._done.pop(place, None)

    def _revoked(self, _consumer: Any, partitions: list[Any]) -> None:
        places = self._places(partitions)
        if self._on_revoked is not None and not self._closing:
            self._on_revoked(places)
        self._owned.difference_update(places)

    def _lost(self, _consumer: Any, partitions: list[Any]) -> None:
        """They are others' already: there is nothing left to commit."""
        self._owned.difference_update(self._places(partitions))

    def _places(self, partitions: Iterable[Any]) -> list[tuple[str, int]]:
        return [(self._address.own_name(one.topic) or "", one.partition) for one in partitions]

    def _chosen(self, partitions: Sequence[tuple[str, int]]) -> list[Any]:
        with self._lock:
            self._check()
            places = partitions or sorted(self._owned)
            return self._wire(TopicPosition(*place, 0) for place in places)

    def _wire(self, positions: Iterable[TopicPosition], note: str = "") -> list[Any]:
        make = confluent().TopicPartition
        return [
            make(
                self._address.full_name(at.topic),
                at.partition,
                at.offset,
                **({"metadata": note} if note else {}),
                **({} if at.leader_epoch is None else {"leader_epoch": at.leader_epoch}),
            )
            for at in positions
        ]

    def _seek(self, at: TopicPosition) -> None:
        if (at.topic, at.partition) not in self._owned:
            raise Conflict(
                f"{at.topic}[{at.partition}] is not read by this consumer now",
                why="a group deals its partitions to its members, once they have polled",
                fix="seek what partitions() names",
            )
        deadline_s = time.monotonic() + ANSWER_S
        while True:
            try:
                self._kafka.seek(self._wire([at])[0])
            except confluent().KafkaException as error:
                # It was assigned a moment ago, and its reading has not begun.
                if not is_named(error, "STATE") or time.monotonic() > deadline_s:
                    raise translate(
                        error, f"{at.topic}[{at.partition}] cannot be sought"
                    ) from error
                time.sleep(WAIT_S / 10)
            else:
                return


def _settings(
    start: Start, committed: bool, session_s: float, poll_every_s: float
) -> dict[str, Any]:
    """How librdkafka reads for us."""
    return {
        "auto.offset.reset": start if isinstance(start, str) else "earliest",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "isolation.level": "read_committed" if committed else "read_uncommitted",
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": int(session_s * 1000),
        "heartbeat.interval.ms": max(1, int(min(3.0, session_s / 10) * 1000)),
        "max.poll.interval.ms": int(max(poll_every_s, session_s) * 1000),
        # One that seeks waits for the fetch that is under way.
        "fetch.wait.max.ms": FETCH_WAIT_MS,
        "queued.max.messages.kbytes": AHEAD_BYTES_MAX >> 10,
        "topic.metadata.refresh.interval.ms": int(PARTITIONS_S * 1000),
    }


def _check_topics(topics: Sequence[str], group: str | None, start: Start) -> None:
    if not topics:
        raise Usage("a consumer reads at least one topic")
    if isinstance(start, str):
        if start not in ("earliest", "latest"):
            raise Usage(
                f"a consumer cannot start at {start!r}",
                fix='start="earliest", start="latest", or a list of TopicPosition without a group',
            )
    elif group is not None:
        raise Usage(
            "a group starts where it has committed, not at given positions",
            fix="leave the group out, or seek after the first poll",
        )


def _furthest(
    read: Iterable[Record | TopicPosition | Iterable[Record | TopicPosition]],
) -> dict[tuple[str, int], TopicPosition]:
    """How far each partition is, of what was given."""
    found: dict[tuple[str, int], TopicPosition] = {}
    for one in read:
        if isinstance(one, Record):
            each = [one.position]
        elif isinstance(one, TopicPosition):
            each = [one]
        else:
            each = list(_furthest(one).values())
        for at in each:
            place = at.topic, at.partition
            if place not in found or found[place].offset < at.offset:
                found[place] = at
    return found
