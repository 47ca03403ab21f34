"""Topics and groups: made, looked at, changed, deleted."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

from holdfast.topics.address import TopicsAddress
from holdfast.topics.asking import ask_again, change, metadata
from holdfast.topics.failures import REACH, translate
from holdfast.topics.kafka import (
    ANSWER_S,
    WAIT_S,
    ForkGuard,
    common_settings,
    confluent,
    confluent_admin,
)
from holdfast.topics.records import TopicPosition
from holdfast.wire.errors import Conflict, Missing, TerminalError, TimedOut, Unavailable, Usage

T = TypeVar("T")
At = Literal["earliest", "latest"] | int

# What a topic has on a cluster that can give it: one broker may die, and nothing is lost.
COPIES: Final = 3
MIN_INSYNC: Final = 2
PARTITIONS: Final = 1

_log = logging.getLogger(__name__)

_Ask = Callable[[float], Mapping[Any, "Future[Any]"]]  # told how long it may take
_GROUPS_UNKNOWN: Final = "groups cannot be listed"


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
    all that is there is ahead of it. A negative `lag`: it is beyond the end, and its members begin
    anew where they are told to (`start`). After an aborted transaction at the very end a lag of 1
    stays, as with Kafka's own tools: nobody reads what marks its end."""

    topic: str
    partition: int
    committed: int | None
    end: int
    lag: int


class TopicAdmin:
    """What is asked of the whole cluster. Any thread may use it.

    A broker that is being started again is waited for: what breaks off is asked again, for half a
    minute (`ask_again`), or for a minute where something is changed, once (`change`). `Unavailable`
    and `TimedOut`: not even then."""

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
        brokers, with two that must have a record before it counts. `Conflict`: it is there.

        Where the connection broke, and afterwards there is a topic that was not there before, and
        that is as it was asked for, it is taken for ours. So of two that make the same topic at the
        same moment both may be told that they did, if a broker dies just then."""
        wire, there = self._address.full_name(name), self._metadata()
        brokers, is_new = len(there.brokers), wire not in there.topics
        copies = copies or min(COPIES, brokers)
        min_insync = min_insync or (MIN_INSYNC if copies > MIN_INSYNC else 1)
        if brokers > 1 and (copies < COPIES or min_insync < MIN_INSYNC):
            _log.warning(
                "topic %r has %d copies, %d of them in sync: a broker's death may lose records or "
                "stop writing",
                *(name, copies, min_insync),
            )
        own = {"min.insync.replicas": str(min_insync), **(configs or {})}
        made = confluent_admin().NewTopic(wire, partitions, copies, config=own)
        wanted = TopicSummary(name, partitions, copies, own)
        self._change(
            lambda left_s: self._kafka.create_topics([made], request_timeout=left_s),
            f"topic {name!r} cannot be created",
            (lambda: self._shape_of(name) == wanted) if is_new else None,
        )
        self._wait_until(lambda: self._leads(name, partitions), f"topic {name!r} is not there")
        return wanted

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
        parts = self._topic(name).partitions
        own = self._own_configs(name)
        first, after = self.offsets(name, "earliest"), self.offsets(name, "latest")
        offsets = {part: (first[part], after[part]) for part in sorted(parts)}
        return TopicSummary(name, len(parts), _copies_of(parts), own, offsets)

    def delete(self, name: str) -> None:
        """Delete a topic with its records; returns when it is gone. One of its name that others
        make meanwhile stays."""
        wire, what = self._address.full_name(name), f"topic {name!r} cannot be deleted"
        before = self._incarnation(name, what)

        def is_gone() -> bool:
            try:
                return self._incarnation(name, what) != before
            except Missing:
                return True

        self._change(
            lambda left_s: self._kafka.delete_topics([wire], request_timeout=left_s), what, is_gone
        )
        self._wait_until(
            lambda: wire not in self._metadata().topics or is_gone(),
            f"topic {name!r} is still there",
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
            self._change(
                lambda left_s: self._kafka.create_partitions([more], request_timeout=left_s),
                what,
                lambda: len(self._topic(name).partitions) == partitions,
            )
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
            # Twice is once: each entry says what shall be, whatever was before.
            self._change(
                lambda left_s: self._kafka.incremental_alter_configs(
                    [resource], request_timeout=left_s
                ),
                what,
                None,
            )

    def incarnation(self, name: str) -> str:
        """Kafka's id of the topic: another, if it was deleted and made anew."""
        return self._incarnation(name, f"topic {name!r} cannot be described")

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
        names = self._group_names()
        if not names:
            return []
        wire = [self._address.full_name(name) for name in names]
        described = self._asked(
            lambda left_s: self._kafka.describe_consumer_groups(wire, request_timeout=left_s),
            _GROUPS_UNKNOWN,
        )
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
                found.append(PartitionLag(topic, part, at, end, lag))
        return found

    def reset(self, group: str, topic: str, to: At | Mapping[int, int]) -> list[TopicPosition]:
        """Set how far a group without members is; where it goes on now. `Conflict`: it has members,
        who would set it back (or, where a broker died just then, who may have begun there).
        `Usage`: there is no such offset."""
        at = (
            self._checked_offsets(topic, to) if isinstance(to, Mapping) else self.offsets(topic, to)
        )
        place = confluent().TopicPartition
        wire = [place(self._address.full_name(topic), part, each) for part, each in at.items()]
        asked = confluent().ConsumerGroupTopicPartitions(self._address.full_name(group), wire)
        wanted = [TopicPosition(topic, part, each) for part, each in sorted(at.items())]
        what = f"group {group!r} cannot be reset"

        def ask(left_s: float) -> None:
            futures = self._kafka.alter_consumer_group_offsets([asked], request_timeout=left_s)
            (done,) = self._each(futures, what, left_s)
            for one in done.topic_partitions:
                if one.error is not None:
                    raise translate(one.error, what)

        change(ask, lambda: set(wanted) <= set(self._committed(group)))
        return wanted

    def _checked_offsets(self, topic: str, to: Mapping[int, int]) -> Mapping[int, int]:
        first, after = self.offsets(topic, "earliest"), self.offsets(topic, "latest")
        for part, offset in to.items():
            if part not in after or not first[part] <= offset <= after[part]:
                there = (
                    f"it has {first[part]} to {after[part]}" if part in after else "there is none"
                )
                raise Usage(
                    f"a group cannot go on at offset {offset} of partition {part} of {topic!r}",
                    why=there,
                    fix=f"holdfast topics describe {topic}",
                )
        return to

    def delete_group(self, group: str) -> None:
        """Forget a group without members, and how far it was."""
        wire = [self._address.full_name(group)]
        self._change(
            lambda left_s: self._kafka.delete_consumer_groups(wire, request_timeout=left_s),
            f"group {group!r} cannot be deleted",
            lambda: group not in self._group_names(),
        )

    # --- inside -----------------------------------------------------------------------------------

    def _ours(self, names: Iterable[str]) -> list[str]:
        """Those that are below our prefix, as we call them; not Kafka's own."""
        own = (self._address.own_name(name) for name in names if not name.startswith("__"))
        return sorted(name for name in own if name)

    def _metadata(self, topic: str | None = None) -> Any:
        self._guard.check()
        return metadata(self._kafka, topic, "the cluster does not say what it has")

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

    def _shape_of(self, name: str) -> TopicSummary | None:
        """What a topic was made as; None: it is not there, or nobody says."""
        try:
            parts = self._topic(name).partitions
            return TopicSummary(name, len(parts), _copies_of(parts), self._own_configs(name))
        except TerminalError:
            return None

    def _own_configs(self, name: str) -> dict[str, str]:
        resource = self._resource(name)
        (found,) = self._asked(
            lambda left_s: self._kafka.describe_configs([resource], request_timeout=left_s),
            f"topic {name!r} cannot be described",
        )
        return {
            one.name: one.value
            for one in found.values()
            if one.source == confluent_admin().ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        }

    def _incarnation(self, name: str, what: str) -> str:
        wire = confluent().TopicCollection([self._address.full_name(name)])
        (found,) = self._asked(
            lambda left_s: self._kafka.describe_topics(wire, request_timeout=left_s), what
        )
        return str(found.topic_id)

    def _resource(self, name: str, **more: Any) -> Any:
        kinds = confluent_admin().ResourceType
        return confluent_admin().ConfigResource(kinds.TOPIC, self._address.full_name(name), **more)

    def _offsets(self, name: str, spec: Any, *, committed: bool) -> dict[int, int]:
        wire = self._address.full_name(name)
        place = confluent().TopicPartition
        levels = confluent().IsolationLevel
        level = levels.READ_COMMITTED if committed else levels.READ_UNCOMMITTED
        what = f"the offsets of topic {name!r} cannot be read"

        def ask(left_s: float) -> dict[int, int]:
            wanted = {place(wire, part): spec for part in self._topic(name).partitions}
            futures = self._kafka.list_offsets(
                wanted, isolation_level=level, request_timeout=left_s
            )
            answers = self._each(futures, what, left_s)
            found = {
                one.partition: answer.offset for one, answer in zip(futures, answers, strict=True)
            }
            # What librdkafka gives for a partition whose broker has died meanwhile: no error.
            if confluent().OFFSET_INVALID in found.values():
                raise Unavailable(what, why="the connection broke", fix=REACH)
            return found

        return ask_again(ask)

    def _group_names(self) -> list[str]:
        def ask(left_s: float) -> Any:
            future = self._kafka.list_consumer_groups(request_timeout=left_s)
            listed = self._result(future, _GROUPS_UNKNOWN, left_s)
            if listed.errors and len(listed.errors) >= len(self._metadata().brokers):
                raise translate(listed.errors[0], _GROUPS_UNKNOWN)
            for error in listed.errors:  # another broker has its groups by now, or soon
                _log.warning("a broker does not tell its groups: %s", error)
            return listed.valid

        return self._ours(one.group_id for one in ask_again(ask))

    def _committed(self, group: str) -> list[TopicPosition]:
        asked = confluent().ConsumerGroupTopicPartitions(self._address.full_name(group))
        (found,) = self._asked(
            lambda left_s: self._kafka.list_consumer_group_offsets([asked], request_timeout=left_s),
            f"group {group!r} cannot be read",
        )
        return [
            TopicPosition(self._address.own_name(one.topic) or "", one.partition, one.offset)
            for one in found.topic_partitions
            if one.offset >= 0
        ]

    def _asked(self, ask: _Ask, what: str) -> list[Any]:
        """The answers to what changes nothing."""
        return ask_again(lambda left_s: self._each(ask(left_s), what, left_s))

    def _change(self, ask: _Ask, what: str, is_done: Callable[[], bool] | None) -> None:
        change(lambda left_s: self._each(ask(left_s), what, left_s), is_done)

    def _each(self, futures: Mapping[Any, Future[T]], what: str, left_s: float) -> list[T]:
        return [self._result(future, what, left_s) for future in futures.values()]

    def _result(self, future: Future[T], what: str, left_s: float) -> T:
        self._guard.check()
        try:
            # librdkafka gives up by itself, a little later than it was told.
            return future.result(left_s + ANSWER_S)
        except confluent().KafkaException as error:
            raise translate(error, what) from error
        except (TypeError, ValueError) as error:
            raise Usage(what, why=str(error)) from error
        except TimeoutError as error:
            raise TimedOut(what, why=f"no answer within {left_s + ANSWER_S:g} s") from error

    def _wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Kafka answers before all its brokers know; busy ones take their time."""
        deadline_s = time.monotonic() + ANSWER_S
        while not condition():
            if time.monotonic() > deadline_s:
                raise TimedOut(what, why=f"not within {ANSWER_S:g} s", fix="try again")
            time.sleep(WAIT_S / 2)


def _copies_of(parts: Mapping[int, Any]) -> int:
    return len(next(iter(parts.values())).replicas)
