"""Topics and groups: made, looked at, changed, deleted."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

from holdfast.topics.address import TopicsAddress
from holdfast.topics.failures import translate
from holdfast.topics.kafka import (
    ANSWER_S,
    TOPIC_KNOWN_S,
    WAIT_S,
    ForkGuard,
    common_settings,
    confluent,
    confluent_admin,
)
from holdfast.topics.records import TopicPosition
from holdfast.wire.errors import Conflict, Missing, TimedOut, Usage

T = TypeVar("T")
At = Literal["earliest", "latest"] | int

# What a topic has on a cluster that can give it: one broker may die, and nothing is lost.
COPIES: Final = 3
MIN_INSYNC: Final = 2
PARTITIONS: Final = 1

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TopicSummary:
    """A topic: how many partitions and copies of each, its own settings, and the offsets that each
    partition has, first and next."""

    name: str
    partitions: int
    copies: int
    configs: Mapping[str, str] = field(default_factory=dict)
    offsets: Mapping[int, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class GroupSummary:
    """A group: its state in Kafka's words, and its members' ids."""

    name: str
    state: str
    members: tuple[str, ...] = ()


@dataclass(frozen=True)
class PartitionLag:
    """How far a group is in one partition; `committed` is None where it has committed nothing, and
    all that is there is ahead of it."""

    topic: str
    partition: int
    committed: int | None
    end: int
    lag: int


class TopicAdmin:
    """What is asked of the whole cluster. Any thread may use it."""

    def __init__(self, address: TopicsAddress) -> None:
        self._address = address
        self._kafka: Any = confluent_admin().AdminClient(common_settings(address.client_settings()))
        self._guard = ForkGuard("admin client", self._kafka)

    # --- topics -----------------------------------------------------------------------------------

    def list_topics(self) -> list[str]:
        return self._ours(self._metadata().topics)

    def create(
        self,
        name: str,
        partitions: int = PARTITIONS,
        copies: int | None = None,
        min_insync: int | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> TopicSummary:
        """Make a topic; returns when it can be used. Copies: three where the cluster has so many
        brokers, with two that must have a record before it counts. `Conflict`: it is there."""
        brokers = len(self._metadata().brokers)
        copies = copies or min(COPIES, brokers)
        min_insync = min_insync or (MIN_INSYNC if copies > MIN_INSYNC else 1)
        if brokers > 1 and (copies < COPIES or min_insync < MIN_INSYNC):
            _log.warning(
                "topic %r has %d copies, %d of them in sync: a broker's death may lose records or "
                "stop writing",
                *(name, copies, min_insync),
            )
        own = {"min.insync.replicas": str(min_insync), **(configs or {})}
        made = confluent_admin().NewTopic(
            self._address.full_name(name), partitions, copies, config=own
        )
        self._each(self._kafka.create_topics([made]), f"topic {name!r} cannot be created")
        self._wait_until(lambda: self._leads(name, partitions), f"topic {name!r} is not there")
        return TopicSummary(name, partitions, copies, own)

    def ensure(
        self,
        name: str,
        partitions: int = PARTITIONS,
        copies: int | None = None,
        min_insync: int | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> bool:
        """Make the topic unless it is there, as it is; whether it was made."""
        try:
            self.create(name, partitions, copies, min_insync, configs)
        except Conflict:
            self._wait_until(lambda: self._leads(name, 1), f"topic {name!r} is not there")
            return False
        return True

    def describe(self, name: str) -> TopicSummary:
        topic = self._topic(name)
        parts = topic.partitions
        resource = self._resource(name)
        what = f"topic {name!r} cannot be described"
        (found,) = self._each(self._kafka.describe_configs([resource]), what)
        own = {
            one.name: one.value
            for one in found.values()
            if one.source == confluent_admin().ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        }
        first, after = self.offsets(name, "earliest"), self.offsets(name, "latest")
        offsets = {part: (first[part], after[part]) for part in sorted(parts)}
        return TopicSummary(
            name, len(parts), len(next(iter(parts.values())).replicas), own, offsets
        )

    def delete(self, name: str) -> None:
        """Delete a topic with its records; returns when it is gone."""
        wire = self._address.full_name(name)
        self._each(self._kafka.delete_topics([wire]), f"topic {name!r} cannot be deleted")
        self._wait_until(
            lambda: wire not in self._metadata().topics, f"topic {name!r} is still there"
        )

    def alter(
        self,
        name: str,
        *,
        partitions: int | None = None,
        configs: Mapping[str, str | None] | None = None,
    ) -> None:
        """Change a topic: more partitions (keys then go to others), settings; None takes one back
        to the broker's."""
        what = f"topic {name!r} cannot be changed"
        if partitions is not None:
            more = confluent_admin().NewPartitions(self._address.full_name(name), partitions)
            self._each(self._kafka.create_partitions([more]), what)
            self._wait_until(lambda: self._leads(name, partitions), what)
        if configs:
            kinds = confluent_admin().AlterConfigOpType
            changes = [
                confluent_admin().ConfigEntry(
                    key,
                    value,
                    incremental_operation=kinds.DELETE if value is None else kinds.SET,
                )
                for key, value in configs.items()
            ]
            resource = self._resource(name, incremental_configs=changes)
            self._each(self._kafka.incremental_alter_configs([resource]), what)

    def incarnation(self, name: str) -> str:
        """Kafka's id of the topic: another, if it was deleted and made anew."""
        wire = self._address.full_name(name)
        asked = self._kafka.describe_topics(confluent().TopicCollection([wire]))
        (found,) = self._each(asked, f"topic {name!r} cannot be described")
        return str(found.topic_id)

    def offsets(self, name: str, at: At = "latest", *, committed: bool = False) -> dict[int, int]:
        """Of each partition the first offset that is there, the next one to be written, or that of
        the first record with this time (milliseconds since 1970) or a later one: the next one to be
        written, if there is none. `committed`: without what a transaction may still take back."""
        spec = confluent_admin().OffsetSpec
        kind = {"earliest": spec.earliest, "latest": spec.latest}
        wanted = spec.for_timestamp(at) if isinstance(at, int) else kind[at]()
        found = self._offsets(name, wanted, committed=committed)
        if isinstance(at, int) and -1 in found.values():
            ends = self._offsets(name, spec.latest(), committed=committed)
            found = {part: ends[part] if one < 0 else one for part, one in found.items()}
        return found

    # --- groups -----------------------------------------------------------------------------------

    def groups(self) -> list[GroupSummary]:
        what = "groups cannot be listed"
        listed = self._result(self._kafka.list_consumer_groups(request_timeout=ANSWER_S), what)
        names = self._ours(one.group_id for one in listed.valid)
        if not names:
            return []
        wire = [self._address.full_name(name) for name in names]
        described = self._each(self._kafka.describe_consumer_groups(wire), what)
        return [
            GroupSummary(
                self._address.own_name(one.group_id) or "",
                str(one.state.name).lower(),
                tuple(sorted(member.member_id for member in one.members)),
            )
            for one in described
        ]

    def lag(self, group: str) -> list[PartitionLag]:
        """How far the group is, in each partition of the topics of which it has committed
        something."""
        committed = self._committed(group)
        found = []
        for topic in sorted({at.topic for at in committed}):
            held = {at.partition: at.offset for at in committed if at.topic == topic}
            first, after = self.offsets(topic, "earliest"), self.offsets(topic, "latest")
            for part, end in sorted(after.items()):
                at = held.get(part)
                lag = end - (first[part] if at is None else max(at, first[part]))
                found.append(PartitionLag(topic, part, at, end, max(0, lag)))
        return found

    def reset(self, group: str, topic: str, to: At | Mapping[int, int]) -> list[TopicPosition]:
        """Set how far a group without members is; where it goes on now. `Conflict`: it has members,
        who would set it back."""
        at = to if isinstance(to, Mapping) else self.offsets(topic, to)
        place = confluent().TopicPartition
        wire = [place(self._address.full_name(topic), part, each) for part, each in at.items()]
        asked = confluent().ConsumerGroupTopicPartitions(self._address.full_name(group), wire)
        what = f"group {group!r} cannot be reset"
        (done,) = self._each(self._kafka.alter_consumer_group_offsets([asked]), what)
        for one in done.topic_partitions:
            if one.error is not None:
                raise translate(one.error, what)
        return [TopicPosition(topic, part, each) for part, each in sorted(at.items())]

    def delete_group(self, group: str) -> None:
        """Forget a group without members, and how far it was."""
        wire = [self._address.full_name(group)]
        self._each(self._kafka.delete_consumer_groups(wire), f"group {group!r} cannot be deleted")

    # --- inside -----------------------------------------------------------------------------------

    def _ours(self, names: Iterable[str]) -> list[str]:
        """Those that are below our prefix, as we call them; not Kafka's own."""
        own = (self._address.own_name(name) for name in names if not name.startswith("__"))
        return sorted(name for name in own if name)

    def _metadata(self, topic: str | None = None) -> Any:
        self._guard.check()
        try:
            return self._kafka.list_topics(topic, timeout=ANSWER_S)
        except confluent().KafkaException as error:
            raise translate(error, "the cluster does not say what it has") from error

    def _topic(self, name: str) -> Any:
        wire = self._address.full_name(name)
        found = self._metadata(wire).topics[wire]
        if found.error is not None:
            raise translate(found.error, f"topic {name!r} cannot be read")
        return found

    def _leads(self, name: str, partitions: int) -> bool:
        """Whether so many partitions have a leader."""
        try:
            found = self._topic(name).partitions
        except Missing:
            return False
        return len(found) >= partitions and all(one.leader >= 0 for one in found.values())

    def _resource(self, name: str, **more: Any) -> Any:
        kinds = confluent_admin().ResourceType
        return confluent_admin().ConfigResource(kinds.TOPIC, self._address.full_name(name), **more)

    def _offsets(self, name: str, spec: Any, *, committed: bool) -> dict[int, int]:
        wire = self._address.full_name(name)
        place = confluent().TopicPartition
        asked = {place(wire, part): spec for part in self._topic(name).partitions}
        what = f"the offsets of topic {name!r} cannot be read"
        levels = confluent().IsolationLevel
        level = levels.READ_COMMITTED if committed else levels.READ_UNCOMMITTED
        futures = self._kafka.list_offsets(asked, isolation_level=level, request_timeout=ANSWER_S)
        found = {}
        for one, future in futures.items():
            found[one.partition] = self._result(future, what).offset
        return found

    def _committed(self, group: str) -> list[TopicPosition]:
        asked = confluent().ConsumerGroupTopicPartitions(self._address.full_name(group))
        what = f"group {group!r} cannot be read"
        (found,) = self._each(self._kafka.list_consumer_group_offsets([asked]), what)
        return [
            TopicPosition(self._address.own_name(one.topic) or "", one.partition, one.offset)
            for one in found.topic_partitions
            if one.offset >= 0
        ]

    def _each(self, futures: Mapping[Any, Future[T]], what: str) -> list[T]:
        return [self._result(future, what) for future in futures.values()]

    def _result(self, future: Future[T], what: str) -> T:
        self._guard.check()
        try:
            return future.result(2 * ANSWER_S)
        except confluent().KafkaException as error:
            raise translate(error, what) from error
        except (TypeError, ValueError) as error:
            raise Usage(what, why=str(error)) from error
        except TimeoutError as error:
            raise TimedOut(what, why=f"no answer within {2 * ANSWER_S:g} s") from error

    def _wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Kafka answers before all its brokers know."""
        deadline_s = time.monotonic() + TOPIC_KNOWN_S
        while not condition():
            if time.monotonic() > deadline_s:
                raise TimedOut(what, why=f"not within {TOPIC_KNOWN_S:g} s", fix="try again")
            time.sleep(WAIT_S / 2)
