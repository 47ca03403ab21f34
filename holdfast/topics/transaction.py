"""Consume, transform, produce as one: the records that are written and the offsets that were read
count together, or not at all."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Final

from holdfast.topics.codecs import RecordCodec
from holdfast.topics.consumer import Consumer
from holdfast.topics.failures import translate
from holdfast.topics.kafka import WAIT_S, confluent
from holdfast.topics.producer import Producer
from holdfast.topics.records import TopicPosition
from holdfast.wire.errors import Conflict, Fenced, HoldfastError, TimedOut, Unavailable, Usage

# How long the coordinator may be away before a step of a transaction has failed.
STEP_S: Final = 60.0


class TransactionalProducer:
    """A producer with a transactional id: it fences whoever had the id before, and has one
    transaction at a time. One that is closed cannot go on; another one takes its place."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self._is_open = False
        try:
            self._step(lambda kafka: kafka.init_transactions(STEP_S), "cannot begin")
        except BaseException:
            self.producer.abandon()
            raise

    @property
    def closed(self) -> bool:
        return self.producer.closed

    def begin(self) -> None:
        if self._is_open:
            raise Conflict(
                f"a transaction of {self.producer.transactional_id!r} is open in this process",
                fix="end it first, or give each its own transactional id",
            )
        self._step(lambda kafka: kafka.begin_transaction(), "cannot begin")
        self._is_open = True

    def add_offsets(self, offsets: list[Any], member: Any) -> None:
        self._step(
            lambda kafka: kafka.send_offsets_to_transaction(offsets, member, STEP_S),
            "cannot take the offsets",
        )

    def commit(self) -> None:
        """Returns when it counts. After an error it does not, and is to be aborted; unless this is
        closed then: whether it counts is not known."""
        try:
            self._step(lambda kafka: kafka.commit_transaction(STEP_S), "was not committed")
        except TimedOut as error:
            self.producer.abandon()
            raise Unavailable(
                error.what,
                why=f"{error.why}; it may have been committed",
                fix="begin the next one when the brokers are back: that ends this one",
            ) from error
        except HoldfastError:
            raise
        except BaseException:  # Ctrl-C, while the coordinator decides
            self.producer.abandon()
            raise
        self._is_open = False

    def abort(self) -> None:
        """Returns when nothing of it will count. What was sent and has no answer is called off."""
        self._is_open = False
        if self.closed:
            return
        try:
            self._step(lambda kafka: kafka.abort_transaction(STEP_S), "cannot be aborted")
        except BaseException:
            # The coordinator aborts it when the next one begins, or when its time is over.
            self.producer.abandon()
            raise

    def _step(self, call: Callable[[Any], Any], problem: str) -> None:
        """Do it, again for as long as the coordinator may come back."""
        what = f"a transaction of {self.producer.transactional_id!r} {problem}"
        deadline_s = time.monotonic() + STEP_S
        while True:
            try:
                self.producer.run(call)
            except confluent().KafkaException as error:
                cause = error.args[0]
                if cause.fatal():
                    failure = self._fatal(error, what)
                    self.producer.abandon()
                    raise failure from error
                if not cause.retriable():
                    raise translate(error, what) from error
                if time.monotonic() > deadline_s:
                    raise TimedOut(
                        what,
                        why=f"{cause.str()}, for {STEP_S:g} s",
                        fix="look whether the brokers run",
                    ) from error
                time.sleep(WAIT_S)
            else:
                return

    def _fatal(self, error: BaseException, what: str) -> HoldfastError:
        """librdkafka says of later steps only that there was a fatal error before."""
        first = self.producer.fatal
        if first is None:
            return translate(error, what)
        return type(first)(what, why=first.why, fix=first.fix)


class TopicTransaction:
    """One transaction. Inside `with`: `send`, and `commit_offsets` for what was read. At its end
    all of it counts; after an error none of it, and the consumers go back to what they had read.

    `Unavailable` at the end: the brokers went away, and whether it counts is not known; the
    consumers find out before they read on. `Fenced`: somebody else has the id now."""

    def __init__(
        self,
        find: Callable[[], TransactionalProducer],
        codec: RecordCodec,
        consumer: Consumer | None = None,
    ) -> None:
        self._find = find
        self._codec = codec
        self._owner: TransactionalProducer | None = None
        self._sent: list[Future[TopicPosition]] = []
        self._waits: list[Consumer] = [] if consumer is None else [consumer]
        self._read: dict[Consumer, list[TopicPosition]] = {}

    def send(self, topic: str, value: Any, **more: Any) -> Future[TopicPosition]:
        """As `Producer.send`: seen by readers of committed records when the transaction counts."""
        data = None if value is None else self._codec.encode(value)
        future = self._open.producer.send(topic, data, **more)
        self._sent.append(future)
        return future

    def commit_offsets(self, consumer: Consumer) -> None:
        """The consumer's group is done, with this transaction, with everything that it has read."""
        if consumer.group is None:
            raise Usage("a consumer without a group commits nothing", fix="open it with group=…")
        self._read.setdefault(consumer, [])
        at, offsets, member = consumer.offsets_on_wire()
        if offsets:
            self._open.add_offsets(offsets, member)
        self._read[consumer] = at

    def __enter__(self) -> TopicTransaction:
        owner = self._find()
        owner.begin()
        self._owner = owner
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        owner = self._open
        try:
            if error is None:
                self._commit(owner)
            else:
                self._undo(owner, error)
        finally:
            self._owner = None

    @property
    def _open(self) -> TransactionalProducer:
        if self._owner is None:
            raise Usage("the transaction is not open", fix="use it inside `with … as txn:`")
        return self._owner

    def _commit(self, owner: TransactionalProducer) -> None:
        try:
            for consumer in self._waits:
                if consumer not in self._read:
                    self.commit_offsets(consumer)
        except BaseException as error:
            self._undo(owner, error)
            raise
        try:
            owner.commit()
        except BaseException as error:
            if owner.closed:
                # A new epoch ends it one way or the other; one that is fenced begins none.
                settle = _nothing if isinstance(error, Fenced) else self._find
                for consumer in self._consumers:
                    consumer.settle_first(settle)
                raise
            cause = self._first_failure() or error
            self._undo(owner, cause)
            if cause is error:
                raise
            raise cause from error
        for consumer, at in self._read.items():
            consumer.mark_done(at)

    @property
    def _consumers(self) -> set[Consumer]:
        return {*self._waits, *self._read}

    def _first_failure(self) -> HoldfastError | None:
        """Why it could not be committed, if that was a record."""
        for future in self._sent:
            if future.done() and isinstance(found := future.exception(), HoldfastError):
                return found
        return None

    def _undo(self, owner: TransactionalProducer, error: BaseException) -> None:
        """Abort, and read again; what goes wrong there is added to the error that led here."""
        for step in [owner.abort, *(consumer.rewind for consumer in self._consumers)]:
            try:
                step()
            except HoldfastError as further:
                error.add_note(further.sentence)


def _nothing() -> None:
    """Whoever fenced us has ended our transaction."""
