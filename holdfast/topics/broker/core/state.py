"""Everything that survives a restart, and the one function that changes it.

`State.apply(command, now_ms)` is called with commands that are durable, in the order of the
journal: by the server, by recovery, and by the simulator. It decides, changes the state, and says
what to do to the files (`Effect`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from holdfast.topics.broker.core import batch, commands
from holdfast.topics.broker.core.commands import Acl, AnyCommand, Offsets, SavedGroup
from holdfast.topics.broker.core.configs import TopicSettings, intern, settings
from holdfast.topics.broker.core.partition import Partition
from holdfast.topics.broker.core.transactions import (
    ProducerTransaction,
    TransactionPhase,
    Transactions,
)
from holdfast.topics.broker.protocol.codes import ErrorCode, KafkaError

# Kafka's `producer.id.expiration.ms` and `transactional.id.expiration.ms`.
PRODUCER_IDLE_MS: Final = 24 * 3600 * 1000
TRANSACTIONAL_ID_IDLE_MS: Final = 7 * 24 * 3600 * 1000


class Topic(msgspec.Struct, array_like=True):
    """A topic: a new one of the same name has another id."""

    name: str
    topic_id: bytes
    configs: dict[str, str]
    partitions: list[Partition]
    settings: TopicSettings = settings({})

    def configure(self, own: dict[str, str]) -> None:
        self.configs = intern(own)
        self.settings = settings(own)


# --- what apply says ------------------------------------------------------------------------------


class Written(NamedTuple):
    """These bytes are the next of this partition's log."""

    topic_id: bytes
    partition: int
    base_offset: int
    data: bytes


class Trimmed(NamedTuple):
    """What lies before this offset may be removed."""

    topic_id: bytes
    partition: int
    log_start: int


class TopicMade(NamedTuple):
    """This topic has these partitions, from `first` on new ones."""

    topic: Topic
    first: int


class TopicGone(NamedTuple):
    topic_id: bytes


Effect: TypeAlias = Written | Trimmed | TopicMade | TopicGone


class Appended(NamedTuple):
    """Where a batch lies. `append_time_ms` is -1 unless the topic has the broker's times."""

    base_offset: int
    append_time_ms: int
    log_start: int


class ProducerId(NamedTuple):
    producer_id: int
    epoch: int


class CommandOutcome(NamedTuple):
    """What became of a command."""

    error: ErrorCode = ErrorCode.NONE
    text: str = ""
    value: Any = None
    effects: tuple[Effect, ...] = ()


_DONE: Final = CommandOutcome()


class Image(msgspec.Struct, array_like=True):
    """The whole state as a snapshot keeps it."""

    topics: list[tuple[str, bytes, dict[str, str], list[Partition]]]
    transactions: Transactions
    groups: dict[str, SavedGroup]
    offsets: dict[str, Offsets]
    acls: list[Acl]


class BrokerState:
    """Topics, groups' offsets, transactions, access."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.by_id: dict[bytes, Topic] = {}
        self.transactions = Transactions()
        self.groups: dict[str, SavedGroup] = {}
        self.offsets: dict[str, Offsets] = {}
        self.acls: set[Acl] = set()

    # --- snapshots ----------------------------------------------------------------------------

    def image(self) -> Image:
        topics = [(one.name, one.topic_id, one.configs, one.partitions) for one in self]
        return Image(topics, self.transactions, self.groups, self.offsets, sorted(self.acls))

    @classmethod
    def of(cls, image: Image) -> BrokerState:
        state = cls()
        for name, topic_id, own, partitions in image.topics:
            state._add(Topic(name, topic_id, {}, partitions), own)
        state.transactions = image.transactions
        state.groups = image.groups
        state.offsets = image.offsets
        state.acls = set(image.acls)
        return state

    def _add(self, topic: Topic, own: dict[str, str]) -> None:
        topic.configure(own)
        self.topics[topic.name] = self.by_id[topic.topic_id] = topic

    # --- reading ------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Topic]:
        return iter(self.topics.values())

    def partition(self, name: str, number: int) -> Partition | None:
        topic = self.topics.get(name)
        if topic is None or not 0 <= number < len(topic.partitions):
            return None
        return topic.partitions[number]

    @property
    def partitions_count(self) -> int:
        return sum(len(topic.partitions) for topic in self)

    def is_pending(self, group: str, topic: str, partition: int) -> bool:
        """Whether an open transaction is to change this offset."""
        return any(
            partition in held.offsets.get(group, {}).get(topic, {})
            for held in self.transactions.by_id.values()
        )

    # --- deciding -----------------------------------------------------------------------------

    def apply(self, command: AnyCommand, now_ms: int) -> CommandOutcome:
        """Decide a command that is durable. What it is refused with changes nothing."""
        try:
            return _APPLY[type(command)](self, command, now_ms)
        except KafkaError as error:
            return CommandOutcome(error.code, error.text)

    def _append(self, asked: commands.Append, now_ms: int) -> CommandOutcome:
        topic = self.by_id.get(asked.topic_id)
        if topic is None or asked.partition >= len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition = topic.partitions[asked.partition]
        header = batch.read_header(asked.batch)
        append_time = now_ms if topic.settings.append_time else -1
        if header.producer_id >= 0:
            # Kafka asks the coordinator before a transaction's first batch here, whatever that is.
            is_first = header.is_transactional and header.producer_id not in partition.open_from
            if is_first:
                self._check_transaction(asked, topic, header)
            sent = partition.duplicate_of(header)
            if sent is not None:
                stamped = sent.timestamp if topic.settings.append_time else -1
                return CommandOutcome(
                    value=Appended(sent.base_offset, stamped, partition.log_start)
                )
            partition.check_sequence(header)
            if not is_first:
                self._check_transaction(asked, topic, header)
        if append_time >= 0:
            header = header._replace(max_timestamp=append_time)
        offset = partition.append(header, now_ms)
        data = batch.stamp(asked.batch, offset, append_time if append_time >= 0 else None)
        written = Written(asked.topic_id, asked.partition, offset, data)
        return CommandOutcome(
            value=Appended(offset, append_time, partition.log_start), effects=(written,)
        )

    def _check_transaction(
        self, asked: commands.Append, topic: Topic, header: batch.Header
    ) -> None:
        """A batch of a transaction comes after its partition was added; others do not come in
        between."""
        if not header.is_transactional:
            if header.producer_id in topic.partitions[asked.partition].open_from:
                raise KafkaError(ErrorCode.INVALID_TXN_STATE, "the producer has a transaction open")
            return
        held = self.transactions.by_id.get(asked.transactional_id or "")
        if held is None or held.producer_id != header.producer_id:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if held.epoch != header.producer_epoch:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH)
        if (
            held.phase is not TransactionPhase.ONGOING
            or (topic.name, asked.partition) not in held.partitions
        ):
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "the partition is not in the transaction")

    def _trim(self, asked: commands.Trim, _now_ms: int) -> CommandOutcome:
        topic = self.by_id.get(asked.topic_id)
        if topic is None or asked.partition >= len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition = topic.partitions[asked.partition]
        if asked.offset > partition.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        partition.trim(asked.offset)
        effect = Trimmed(asked.topic_id, asked.partition, partition.log_start)
        return CommandOutcome(value=partition.log_start, effects=(effect,))

    # --- topics -------------------------------------------------------------------------------

    def _create(self, asked: commands.CreateTopic, _now_ms: int) -> CommandOutcome:
        if asked.name in self.topics:
            raise KafkaError(
                ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{asked.name}' already exists."
            )
        made = [Partition() for _ in range(asked.partitions)]
        topic = Topic(asked.name, asked.topic_id, {}, made)
        self._add(topic, asked.configs)
        return CommandOutcome(value=topic, effects=(TopicMade(topic, 0),))

    def _delete(self, asked: commands.DeleteTopic, _now_ms: int) -> CommandOutcome:
        topic = self.by_id.pop(asked.topic_id, None)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        del self.topics[topic.name]
        for offsets in self.offsets.values():
            offsets.pop(topic.name, None)
        for held in self.transactions.by_id.values():
            held.leave_topic(topic.name)
        return CommandOutcome(effects=(TopicGone(asked.topic_id),))

    def _grow(self, asked: commands.AddPartitions, _now_ms: int) -> CommandOutcome:
        topic = self._known(asked.topic_id)
        first = len(topic.partitions)
        if asked.partitions <= first:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"Topic already has {first} partitions: {asked.partitions} is no increase.",
            )
        topic.partitions += [Partition() for _ in range(asked.partitions - first)]
        return CommandOutcome(effects=(TopicMade(topic, first),))

    def _configure(self, asked: commands.Configure, _now_ms: int) -> CommandOutcome:
        self._known(asked.topic_id).configure(asked.configs)
        return _DONE

    def _known(self, topic_id: bytes) -> Topic:
        topic = self.by_id.get(topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return topic

    # --- groups -------------------------------------------------------------------------------

    def _save_group(self, asked: commands.SaveGroup, _now_ms: int) -> CommandOutcome:
        self.groups[asked.group] = asked.saved
        return _DONE

    def _commit_offsets(self, asked: commands.CommitOffsets, _now_ms: int) -> CommandOutcome:
        self._take_offsets(asked.group, asked.offsets)
        return _DONE

    def _take_offsets(self, group: str, offsets: Offsets) -> None:
        held = self.offsets.setdefault(group, {})
        for topic, partitions in offsets.items():
            # Of a topic that was deleted meanwhile nothing is kept.
            if topic in self.topics:
                held.setdefault(topic, {}).update(partitions)

    def _delete_offsets(self, asked: commands.DeleteOffsets, _now_ms: int) -> CommandOutcome:
        held = self.offsets.get(asked.group, {})
        for topic, partition in asked.partitions:
            held.get(topic, {}).pop(partition, None)
            if not held.get(topic, True):
                del held[topic]
        if not held:
            self.offsets.pop(asked.group, None)
        return _DONE

    def _delete_group(self, asked: commands.DeleteGroup, _now_ms: int) -> CommandOutcome:
        self.groups.pop(asked.group, None)
        self.offsets.pop(asked.group, None)
        for held in self.transactions.by_id.values():
            held.offsets.pop(asked.group, None)
        return _DONE

    # --- producers and transactions -----------------------------------------------------------

    def _init_producer(self, asked: commands.InitProducer, now_ms: int) -> CommandOutcome:
        if asked.transactional_id is None:
            return CommandOutcome(value=ProducerId(self.transactions.new_producer_id(), 0))
        expected = asked.producer_id, asked.epoch
        held = self.transactions.by_id.get(asked.transactional_id)
        if held is not None and held.phase is TransactionPhase.ONGOING:
            self.transactions.check_expected(held, expected)
            self.transactions.fence(held)
            effects = self._end(held, commit=False, now_ms=now_ms)
            text = "its transaction was open and is aborted: ask again"
            return CommandOutcome(ErrorCode.CONCURRENT_TRANSACTIONS, text, effects=effects)
        held = self.transactions.renew(asked.transactional_id, asked.timeout_ms, expected, now_ms)
        return CommandOutcome(value=ProducerId(held.producer_id, held.epoch))

    def _add_to_transaction(self, asked: commands.AddToTransaction, now_ms: int) -> CommandOutcome:
        held = self.transactions.find(asked.transactional_id, asked.producer_id, asked.epoch)
        if any(self.partition(*one) is None for one in asked.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        held.begin(now_ms)
        held.partitions.update(asked.partitions)
        if asked.group is not None:
            held.groups.add(asked.group)
        return _DONE

    def _commit_in_transaction(
        self, asked: commands.CommitInTransaction, _now: int
    ) -> CommandOutcome:
        try:
            held = self.transactions.find(asked.transactional_id, asked.producer_id, asked.epoch)
        except KafkaError as error:
            if error.code is ErrorCode.PRODUCER_FENCED:
                raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, error.text) from None
            raise
        if held.phase is not TransactionPhase.ONGOING or asked.group not in held.groups:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "the group is not in the transaction")
        pending = held.offsets.setdefault(asked.group, {})
        for topic, partitions in asked.offsets.items():
            pending.setdefault(topic, {}).update(partitions)
        return _DONE

    def _end_transaction(self, asked: commands.EndTransaction, now_ms: int) -> CommandOutcome:
        held = self.transactions.find(asked.transactional_id, asked.producer_id, asked.epoch)
        if held.phase is TransactionPhase.ONGOING:
            return CommandOutcome(effects=self._end(held, commit=asked.commit, now_ms=now_ms))
        if held.phase is (TransactionPhase.COMMITTED if asked.commit else TransactionPhase.ABORTED):
            return _DONE  # it was answered, and the answer was lost
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, f"the transaction is {held.phase}")

    def _end(self, held: ProducerTransaction, *, commit: bool, now_ms: int) -> tuple[Effect, ...]:
        """Write the markers, and let the offsets count or not."""
        kind = batch.COMMIT if commit else batch.ABORT
        marker = batch.marker(kind, held.producer_id, held.epoch, now_ms)
        effects = []
        for name, number in sorted(held.partitions):
            partition = self.partition(name, number)
            if partition is None:
                continue  # its topic was deleted meanwhile
            offset = partition.append_marker(kind, held.producer_id, held.epoch, now_ms)
            topic_id = self.topics[name].topic_id
            effects.append(Written(topic_id, number, offset, batch.stamp(marker, offset)))
        if commit:
            for group, offsets in held.offsets.items():
                self._take_offsets(group, offsets)
        held.close(commit=commit, now_ms=now_ms)
        return tuple(effects)

    def _expire_transaction(self, asked: commands.ExpireTransaction, now_ms: int) -> CommandOutcome:
        held = self.transactions.by_id.get(asked.transactional_id)
        if held is None or not held.is_due(now_ms):
            return _DONE  # it has ended by itself
        self.transactions.fence(held)
        return CommandOutcome(effects=self._end(held, commit=False, now_ms=now_ms))

    def _forget_idle(self, _asked: commands.ForgetIdle, now_ms: int) -> CommandOutcome:
        for topic in self:
            for partition in topic.partitions:
                partition.expire_producers(now_ms - PRODUCER_IDLE_MS)
        silent_since = now_ms - TRANSACTIONAL_ID_IDLE_MS
        known = self.transactions.by_id
        idle = [
            name
            for name, held in known.items()
            if held.phase is not TransactionPhase.ONGOING and held.last_ms < silent_since
        ]
        for name in idle:
            del known[name]
        return _DONE

    # --- access -------------------------------------------------------------------------------

    def _add_acls(self, asked: commands.AddAcls, _now_ms: int) -> CommandOutcome:
        self.acls.update(asked.acls)
        return _DONE

    def _remove_acls(self, asked: commands.RemoveAcls, _now_ms: int) -> CommandOutcome:
        self.acls.difference_update(asked.acls)
        return _DONE


_APPLY: Final[dict[type, Callable[[BrokerState, Any, int], CommandOutcome]]] = {
    commands.Append: BrokerState._append,
    commands.Trim: BrokerState._trim,
    commands.CreateTopic: BrokerState._create,
    commands.DeleteTopic: BrokerState._delete,
    commands.AddPartitions: BrokerState._grow,
    commands.Configure: BrokerState._configure,
    commands.SaveGroup: BrokerState._save_group,
    commands.CommitOffsets: BrokerState._commit_offsets,
    commands.DeleteOffsets: BrokerState._delete_offsets,
    commands.DeleteGroup: BrokerState._delete_group,
    commands.InitProducer: BrokerState._init_producer,
    commands.AddToTransaction: BrokerState._add_to_transaction,
    commands.CommitInTransaction: BrokerState._commit_in_transaction,
    commands.EndTransaction: BrokerState._end_transaction,
    commands.ExpireTransaction: BrokerState._expire_transaction,
    commands.ForgetIdle: BrokerState._forget_idle,
    commands.AddAcls: BrokerState._add_acls,
    commands.RemoveAcls: BrokerState._remove_acls,
}
