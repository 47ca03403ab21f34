"""The transaction coordinator: ids, epochs, what is open, and when it ends.

The decision, the markers in every partition and the offsets that go with it are one command, so
nothing is ever seen between Prepare and Complete.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from holdfast.topics.broker.core.commands import Offsets
from holdfast.topics.broker.protocol.codes import ErrorCode, KafkaError

# The last epoch is kept for fencing.
EPOCH_MAX: Final = 32_766
TIMEOUT_MS_MAX: Final = 900_000
NOBODY: Final = -1


class TransactionPhase(StrEnum):
    """Where a transactional id stands, in Kafka's words."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    COMMITTED = "CompleteCommit"
    ABORTED = "CompleteAbort"


class ProducerTransaction(msgspec.Struct):
    """A transactional id: its producer, and what its transaction holds while one is open."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    last_ms: int
    previous_epoch: int = NOBODY  # what a retried InitProducerId of a client still has
    previous_producer_id: int = NOBODY
    phase: TransactionPhase = TransactionPhase.EMPTY
    started_ms: int = 0
    partitions: set[tuple[str, int]] = set()
    groups: set[str] = set()
    offsets: dict[str, Offsets] = {}

    def is_due(self, now_ms: int) -> bool:
        return self.phase is TransactionPhase.ONGOING and now_ms - self.started_ms > self.timeout_ms

    def begin(self, now_ms: int) -> None:
        """Open a transaction, unless one is."""
        self.last_ms = now_ms
        if self.phase is not TransactionPhase.ONGOING:
            self.phase = TransactionPhase.ONGOING
            self.started_ms = now_ms

    def leave_topic(self, name: str) -> None:
        """The topic is gone: a later one of the same name has no part in this transaction."""
        self.partitions = {one for one in self.partitions if one[0] != name}
        for offsets in self.offsets.values():
            offsets.pop(name, None)

    def close(self, *, commit: bool, now_ms: int) -> None:
        self.phase = TransactionPhase.COMMITTED if commit else TransactionPhase.ABORTED
        self.last_ms = now_ms
        self.partitions = set()
        self.groups = set()
        self.offsets = {}


class Transactions(msgspec.Struct):
    """All transactional ids, and the next producer's id."""

    next_producer_id: int = 0
    by_id: dict[str, ProducerTransaction] = {}

    def new_producer_id(self) -> int:
        self.next_producer_id += 1
        return self.next_producer_id - 1

    def find(self, transactional_id: str, producer_id: int, epoch: int) -> ProducerTransaction:
        """The transaction of this producer; refuse another one, and one that was fenced."""
        held = self.by_id.get(transactional_id)
        if held is None or held.producer_id != producer_id:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                f"{transactional_id!r} is not the transactional id of producer {producer_id}",
            )
        if held.epoch != epoch:
            raise KafkaError(
                ErrorCode.PRODUCER_FENCED,
                f"{transactional_id!r} has epoch {held.epoch}, not {epoch}",
            )
        return held

    def renew(
        self, transactional_id: str, timeout_ms: int, expected: tuple[int, int], now_ms: int
    ) -> ProducerTransaction:
        """A producer begins anew: the id with a higher epoch. No transaction of it is open."""
        held = self.by_id.get(transactional_id)
        if held is None:
            held = ProducerTransaction(
                transactional_id, self.new_producer_id(), 0, timeout_ms, now_ms
            )
            self.by_id[transactional_id] = held
            return held
        self.check_expected(held, expected)
        held.timeout_ms = timeout_ms
        held.last_ms = now_ms
        held.phase = TransactionPhase.EMPTY
        has_epoch = expected[1] != NOBODY
        if has_epoch and self._is_retry(held, expected):
            return held  # it was answered, and the answer was lost
        self.bump(held, remember=has_epoch)
        return held

    def check_expected(self, held: ProducerTransaction, expected: tuple[int, int]) -> None:
        """Refuse a client that says which id and epoch it has, and has old ones."""
        if expected == (NOBODY, NOBODY):
            return
        now = held.producer_id, held.epoch
        if expected != now and not self._is_retry(held, expected):
            raise KafkaError(
                ErrorCode.PRODUCER_FENCED,
                f"{held.transactional_id!r} has producer {now[0]} with epoch {now[1]} by now",
            )

    @staticmethod
    def _is_retry(held: ProducerTransaction, expected: tuple[int, int]) -> bool:
        previous = held.previous_producer_id, held.previous_epoch
        return expected == previous and previous[1] != NOBODY

    @staticmethod
    def fence(held: ProducerTransaction) -> None:
        """Shut out whoever has the epoch of now, to end what it left open. It may ask for the next
        epoch by the one it has, as after a lost answer: nobody else has taken the id."""
        held.previous_producer_id, held.previous_epoch = held.producer_id, held.epoch
        held.epoch += 1

    def bump(self, held: ProducerTransaction, *, remember: bool) -> None:
        """The next epoch; after the last one another producer id."""
        previous = held.producer_id, held.epoch
        if held.epoch >= EPOCH_MAX:
            held.producer_id, held.epoch = self.new_producer_id(), 0
        else:
            held.epoch += 1
        nobody = NOBODY, NOBODY
        held.previous_producer_id, held.previous_epoch = previous if remember else nobody
