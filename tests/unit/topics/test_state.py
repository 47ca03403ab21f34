"""The broker's core: offsets, sequences, transactions. Each rule is Kafka's."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdfast.topics.broker.core import batch, commands
from holdfast.topics.broker.core.commands import CommittedOffset
from holdfast.topics.broker.core.state import PRODUCER_IDLE_MS, BrokerState, Image
from holdfast.topics.broker.core.transactions import EPOCH_MAX, TransactionPhase
from holdfast.topics.broker.protocol.codes import ErrorCode
from tests.unit.topics.made import Driver, append, make_batch

OFFSET = CommittedOffset(5, 0, "", 1)


def test_offsets_follow_each_other_in_each_partition() -> None:
    driver = Driver()
    topic = driver.create()
    assert driver.good(append(topic, make_batch(3))).base_offset == 0
    assert driver.good(append(topic, make_batch(2))).base_offset == 3
    assert driver.good(append(topic, make_batch(2), partition=1)).base_offset == 0
    assert driver.state.topics["t"].partitions[0].high_watermark == 5


def test_a_batch_that_is_sent_twice_is_there_once() -> None:
    driver = Driver()
    topic, producer = driver.create(), driver.producer()
    first = make_batch(3, producer=producer, sequence=0)
    assert driver.good(append(topic, first)).base_offset == 0
    assert driver.good(append(topic, make_batch(2, producer=producer, sequence=3))).base_offset == 3
    assert driver.good(append(topic, first)).base_offset == 0
    assert driver.state.topics["t"].partitions[0].next_offset == 5


def test_a_gap_in_a_producers_sequence_is_refused() -> None:
    driver = Driver()
    topic, producer = driver.create(), driver.producer()
    driver.good(append(topic, make_batch(3, producer=producer, sequence=0)))
    for sequence in (4, 1, 2):
        late = make_batch(1, producer=producer, sequence=sequence)
        assert driver.error(append(topic, late)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_duplicate_that_is_too_old_to_be_known_is_out_of_order() -> None:
    driver = Driver()
    topic, producer = driver.create(), driver.producer()
    for sequence in range(7):
        driver.good(append(topic, make_batch(1, producer=producer, sequence=sequence)))
    old = make_batch(1, producer=producer, sequence=1)
    assert driver.error(append(topic, old)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    known = make_batch(1, producer=producer, sequence=2)
    assert driver.good(append(topic, known)).base_offset == 2


def test_a_producer_of_an_older_epoch_is_fenced_and_a_newer_one_begins_at_zero() -> None:
    driver = Driver()
    topic, (producer, _) = driver.create(), driver.producer()
    driver.good(append(topic, make_batch(1, producer=(producer, 3), sequence=0)))
    old = make_batch(1, producer=(producer, 2), sequence=1)
    assert driver.error(append(topic, old)) is ErrorCode.INVALID_PRODUCER_EPOCH
    wrong = make_batch(1, producer=(producer, 4), sequence=1)
    assert driver.error(append(topic, wrong)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    driver.good(append(topic, make_batch(1, producer=(producer, 4), sequence=0)))


def test_sequences_go_round() -> None:
    driver = Driver()
    topic, producer = driver.create(), driver.producer()
    driver.good(append(topic, make_batch(2, producer=producer, sequence=2**31 - 2)))
    driver.good(append(topic, make_batch(1, producer=producer, sequence=0)))


def test_a_producer_that_was_forgotten_may_go_on_with_any_sequence() -> None:
    driver = Driver()
    topic, producer = driver.create(), driver.producer()
    driver.good(append(topic, make_batch(1, producer=producer, sequence=0)))
    driver.now_ms += PRODUCER_IDLE_MS + 1
    driver.good(commands.ForgetIdle())
    driver.good(append(topic, make_batch(1, producer=producer, sequence=9)))


def test_a_topic_that_was_made_again_has_nothing_of_the_old_one() -> None:
    driver = Driver()
    topic = driver.create()
    driver.good(append(topic, make_batch(3)))
    driver.good(commands.CommitOffsets("g", {"t": {0: OFFSET}}))
    driver.good(commands.DeleteTopic(topic))
    assert driver.error(append(topic, make_batch())) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    new = b"another-topic-id"
    driver.good(commands.CreateTopic("t", new, 1, {}))
    assert driver.good(append(new, make_batch())).base_offset == 0
    assert driver.state.offsets["g"] == {}


# --- transactions ---------------------------------------------------------------------------------


@dataclass
class Writer:
    """A transactional producer."""

    driver: Driver
    name: str = "x"
    producer: tuple[int, int] = (-1, -1)
    sequences: dict[int, int] = field(default_factory=dict)

    def start(self) -> Writer:
        outcome = self.driver.do(commands.InitProducer(self.name, 60_000, -1, -1))
        if outcome.error is ErrorCode.CONCURRENT_TRANSACTIONS:
            outcome = self.driver.do(commands.InitProducer(self.name, 60_000, -1, -1))
        self.producer, self.sequences = tuple(outcome.value), {}
        return self

    def add(self, *partitions: int, group: str | None = None) -> ErrorCode:
        wanted = [("t", partition) for partition in partitions]
        return self.driver.error(
            commands.AddToTransaction(self.name, *self.producer, wanted, group)
        )

    def send(self, topic: bytes, partition: int = 0) -> ErrorCode:
        sequence = self.sequences.get(partition, 0)
        data = make_batch(1, producer=self.producer, sequence=sequence, transactional=True)
        error = self.driver.error(append(topic, data, partition, self.name))
        if not error:
            self.sequences[partition] = sequence + 1
        return error

    def end(self, *, commit: bool) -> ErrorCode:
        return self.driver.error(commands.EndTransaction(self.name, *self.producer, commit))


def test_what_is_not_committed_yet_lies_behind_the_last_stable_offset() -> None:
    driver = Driver()
    topic = driver.create()
    writer = Writer(driver).start()
    driver.good(append(topic, make_batch(2)))
    assert writer.add(0) is ErrorCode.NONE
    assert writer.send(topic) is ErrorCode.NONE
    driver.good(append(topic, make_batch(2)))
    partition = driver.state.topics["t"].partitions[0]
    assert (partition.last_stable_offset, partition.high_watermark) == (2, 5)
    assert writer.end(commit=True) is ErrorCode.NONE
    assert (partition.last_stable_offset, partition.high_watermark) == (6, 6)
    assert partition.aborted == []


def test_an_aborted_transaction_is_known_by_its_first_record() -> None:
    driver = Driver()
    topic = driver.create()
    writer = Writer(driver).start()
    writer.add(0, 1)
    writer.send(topic)
    writer.send(topic)
    assert writer.end(commit=False) is ErrorCode.NONE
    partition = driver.state.topics["t"].partitions[0]
    (aborted,) = partition.aborted_between(1, 2)
    assert (aborted.producer_id, aborted.first_offset) == (writer.producer[0], 0)
    assert partition.aborted_between(3, 10) == []
    marker = batch.read_header(driver.written[topic, 1][-1])
    assert marker.is_control, "a partition without records has its marker, too"


def test_a_batch_outside_a_transaction_or_of_another_partition_is_refused() -> None:
    driver = Driver()
    topic = driver.create()
    writer = Writer(driver).start()
    assert writer.send(topic) is ErrorCode.INVALID_TXN_STATE
    writer.add(1)
    assert writer.send(topic, 0) is ErrorCode.INVALID_TXN_STATE
    assert writer.send(topic, 1) is ErrorCode.NONE
    plain = make_batch(1, producer=writer.producer, sequence=1)
    assert driver.error(append(topic, plain, 1)) is ErrorCode.INVALID_TXN_STATE


def test_a_zombie_is_fenced_and_what_it_left_open_is_aborted() -> None:
    driver = Driver()
    topic = driver.create()
    old = Writer(driver).start()
    old.add(0)
    old.send(topic)
    asked = commands.InitProducer("x", 60_000, -1, -1)
    assert driver.error(asked) is ErrorCode.CONCURRENT_TRANSACTIONS
    new = Writer(driver).start()
    assert new.producer == (old.producer[0], old.producer[1] + 2)
    assert old.send(topic) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert old.add(0) is ErrorCode.PRODUCER_FENCED
    assert old.end(commit=True) is ErrorCode.PRODUCER_FENCED
    assert len(driver.state.topics["t"].partitions[0].aborted) == 1


def phase_of(driver: Driver) -> TransactionPhase:
    return driver.state.transactions.by_id["x"].phase


def test_a_transaction_whose_time_is_over_is_aborted_and_its_producer_fenced() -> None:
    driver = Driver()
    topic = driver.create()
    writer = Writer(driver).start()
    writer.add(0)
    writer.send(topic)
    driver.good(commands.ExpireTransaction("x"))
    assert phase_of(driver) is TransactionPhase.ONGOING
    driver.now_ms += 60_001
    driver.good(commands.ExpireTransaction("x"))
    assert phase_of(driver) is TransactionPhase.ABORTED
    assert writer.end(commit=True) is ErrorCode.PRODUCER_FENCED


def test_an_end_that_is_asked_for_twice_is_one_and_another_one_is_refused() -> None:
    driver = Driver()
    topic = driver.create()
    writer = Writer(driver).start()
    assert writer.end(commit=True) is ErrorCode.INVALID_TXN_STATE
    writer.add(0)
    writer.send(topic)
    assert writer.end(commit=True) is ErrorCode.NONE
    end = driver.state.topics["t"].partitions[0].next_offset
    assert writer.end(commit=True) is ErrorCode.NONE
    assert driver.state.topics["t"].partitions[0].next_offset == end
    assert writer.end(commit=False) is ErrorCode.INVALID_TXN_STATE


def test_offsets_of_a_transaction_count_when_it_commits() -> None:
    driver = Driver()
    driver.create()
    writer = Writer(driver).start()
    asked = commands.CommitInTransaction("x", *writer.producer, "g", {"t": {0: OFFSET}})
    assert driver.error(asked) is ErrorCode.INVALID_TXN_STATE
    writer.add(group="g")
    driver.good(asked)
    assert driver.state.is_pending("g", "t", 0)
    assert driver.state.offsets.get("g", {}) == {}
    writer.end(commit=True)
    assert driver.state.offsets["g"]["t"][0] == OFFSET
    assert not driver.state.is_pending("g", "t", 0)


def test_offsets_of_an_aborted_transaction_never_count() -> None:
    driver = Driver()
    driver.create()
    writer = Writer(driver).start()
    writer.add(group="g")
    driver.good(commands.CommitInTransaction("x", *writer.producer, "g", {"t": {0: OFFSET}}))
    writer.end(commit=False)
    assert driver.state.offsets.get("g", {}) == {}


def test_an_answer_that_was_lost_is_given_again_and_does_not_fence() -> None:
    driver = Driver()
    writer = Writer(driver).start()
    asked = commands.InitProducer("x", 60_000, *writer.producer)
    first = driver.good(asked)
    assert first.epoch == writer.producer[1] + 1
    assert driver.good(asked) == first
    stale = commands.InitProducer("x", 60_000, writer.producer[0], 77)
    assert driver.error(stale) is ErrorCode.PRODUCER_FENCED


def test_a_producer_whose_transaction_was_aborted_for_it_goes_on_with_the_next_epoch() -> None:
    driver = Driver()
    topic = driver.create()
    writer = Writer(driver).start()
    writer.add(0)
    writer.send(topic)
    asked = commands.InitProducer("x", 60_000, *writer.producer)
    assert driver.error(asked) is ErrorCode.CONCURRENT_TRANSACTIONS
    made = driver.good(asked)
    assert (made.producer_id, made.epoch) == (writer.producer[0], writer.producer[1] + 1)
    assert phase_of(driver) is TransactionPhase.EMPTY
    writer.producer = made.producer_id, made.epoch
    assert writer.end(commit=False) is ErrorCode.INVALID_TXN_STATE


def test_a_batch_outside_a_transaction_is_refused_for_that_before_its_sequence() -> None:
    driver = Driver()
    topic = driver.create()
    writer = Writer(driver).start()
    writer.add(0)
    writer.send(topic)
    writer.end(commit=True)
    for sequence in (0, 7):  # a batch again, and a gap
        data = make_batch(producer=writer.producer, sequence=sequence, transactional=True)
        asked = append(topic, data, transactional_id="x")
        assert driver.error(asked) is ErrorCode.INVALID_TXN_STATE


def test_after_the_last_epoch_comes_another_producer() -> None:
    driver = Driver()
    writer = Writer(driver).start()
    driver.state.transactions.by_id["x"].epoch = EPOCH_MAX
    made = driver.good(commands.InitProducer("x", 60_000, -1, -1))
    assert made.producer_id != writer.producer[0]
    assert made.epoch == 0


def test_another_producers_transactional_id_is_refused() -> None:
    driver = Driver()
    driver.create()
    Writer(driver).start()
    stranger = commands.AddToTransaction("x", 99, 0, [("t", 0)], None)
    assert driver.error(stranger) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


# --- a model --------------------------------------------------------------------------------------


class Histories(RuleBasedStateMachine):
    """Two transactional producers and a plain one over two partitions; a list of what a reader of
    committed records may see is kept beside, and compared."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver()
        self.topic = self.driver.create()
        self.writers = [Writer(self.driver, name).start() for name in ("x", "y")]
        self.open: dict[str, list[tuple[int, int]]] = {"x": [], "y": []}
        self.seen: set[tuple[int, int]] = set()

    @rule(who=st.integers(0, 1), partition=st.integers(0, 1))
    def write(self, who: int, partition: int) -> None:
        writer = self.writers[who]
        if writer.add(partition) is ErrorCode.NONE:
            offset = self.driver.state.topics["t"].partitions[partition].next_offset
            assert writer.send(self.topic, partition) is ErrorCode.NONE
            self.open[writer.name].append((partition, offset))

    @rule(who=st.integers(0, 1), commit=st.booleans())
    def end(self, who: int, commit: bool) -> None:
        writer = self.writers[who]
        if writer.end(commit=commit) is ErrorCode.NONE:
            if commit:
                self.seen.update(self.open[writer.name])
            self.open[writer.name] = []

    @rule(who=st.integers(0, 1))
    def restart_producer(self, who: int) -> None:
        self.writers[who].start()
        self.open[self.writers[who].name] = []

    @rule(partition=st.integers(0, 1))
    def plain(self, partition: int) -> None:
        offset = self.driver.good(append(self.topic, make_batch(), partition)).base_offset
        self.seen.add((partition, offset))

    @rule()
    def restart_broker(self) -> None:
        raw = msgspec.msgpack.encode(self.driver.state.image())
        self.driver.state = BrokerState.of(msgspec.msgpack.decode(raw, type=Image))

    @invariant()
    def a_reader_sees_what_was_committed_and_nothing_else(self) -> None:
        for number, partition in enumerate(self.driver.state.topics["t"].partitions):
            visible = read_committed(self.driver, self.topic, number)
            stable = partition.last_stable_offset
            expected = {at for where, at in self.seen if where == number and at < stable}
            assert visible == expected


def read_committed(driver: Driver, topic: bytes, number: int) -> set[int]:
    """What a consumer of committed records keeps of what it is sent, as clients do it."""
    partition = driver.state.topics["t"].partitions[number]
    aborted = partition.aborted_between(0, partition.last_stable_offset)
    dropped: set[int] = set()
    kept = set()
    for data in driver.written.get((topic, number), []):
        header = batch.read_header(data)
        if header.base_offset >= partition.last_stable_offset:
            break
        while aborted and aborted[0].first_offset <= header.base_offset:
            dropped.add(aborted.pop(0).producer_id)
        if header.is_control:
            dropped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in dropped):
            kept.add(header.base_offset)
    return kept


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=25, stateful_step_count=25)
