"""A machine of random steps on our broker and on a real Kafka: whatever a client can see is the
same. Steps are right and wrong ones: sequences, epochs, generations, offsets, names.

    HOLDFAST_TOPICS_EXAMPLES=200 HOLDFAST_TOPICS_SEED=7 python -m pytest …   # longer, or again
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Final

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.conftest import require_part
from tests.integration.topics_side import SETTLE_S, Side
from tests.servers.broker import BrokerServer
from tests.servers.kafka import KafkaServer, kafka_missing
from tests.waiting import eventually

pytestmark = pytest.mark.engines

EXAMPLES: Final = int(os.environ.get("HOLDFAST_TOPICS_EXAMPLES", "10"))
STEPS: Final = 40
STEPS_SHOWN: Final = 60
PARTITIONS: Final = 2
# A transaction that nobody ends is aborted soon, and what is compacted is compacted soon.
KAFKA: Final = (
    "transaction.abort.timed.out.transaction.cleanup.interval.ms=200",
    "log.cleaner.backoff.ms=200",
    "auto.create.topics.enable=false",
)
OURS: Final = ("--no-auto-create", "--retention-s", "0.2")
# Records of clients are so much older than markers.
MARKERS_MS: Final = 500_000
CONFIGS: Final = ("retention.ms", "max.message.bytes", "cleanup.policy", "min.insync.replicas")
_names = itertools.count(int(time.time()))

partitions = st.integers(0, PARTITIONS - 1)
earlier = st.sampled_from([-1, -1, -1, -2])  # which epoch of a producer: mostly its latest
labels = st.sampled_from(["a", "b", "c"])
writers = st.sampled_from(["w", "x"])


class Beside(RuleBasedStateMachine):
    """Each step is done on both; their answers are compared at once."""

    hosts: ClassVar[tuple[str, str]]
    differences: ClassVar[list[str]] = []

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[str] = []
        self.ours, self.kafka = (Side(hosts) for hosts in self.hosts)
        self.topic = f"t{next(_names)}"
        self.group = f"g-{self.topic}"
        self.sequences: dict[tuple[str, int], int] = {}
        self.last: dict[tuple[str, int], tuple[int, int]] = {}
        self.open: set[str] = set()  # transactions that may be under way
        self.partitions = PARTITIONS
        self.generation = 0
        self.joined: list[str] = []
        self.begun_ms = self.clock = int(time.time() * 1000) - 2 * MARKERS_MS

    def teardown(self) -> None:
        self.ours.close()
        self.kafka.close()

    def same(self, step: Callable[[Side], Any]) -> Any:
        """What both answer, asked at the same time."""
        with ThreadPoolExecutor(1) as other:
            mine = other.submit(step, self.ours)
            real = step(self.kafka)
        return self._judge(mine.result(), real)

    def soon_same(self, step: Callable[[Side], Any]) -> Any:
        """What both answer, once Kafka has done what it does after an answer."""
        pair: list[Any] = []

        def agree() -> bool:
            pair[:] = [step(self.ours), step(self.kafka)]
            return bool(pair[0] == pair[1])

        with contextlib.suppress(AssertionError):
            eventually(agree, "both answer the same", SETTLE_S)
        return self._judge(*pair)

    def _judge(self, mine: Any, real: Any) -> Any:
        """The answer, if it is one. What differs is kept as it was found: the same steps again may
        meet other times."""
        frame = sys._getframe(2)
        given = {name: one for name, one in frame.f_locals.items() if _is_plain(one)}
        shown = ", ".join(f"{name}={one!r}" for name, one in given.items())
        self.steps.append(f"{frame.f_code.co_name}({shown}) -> {real}")
        if mine != real:
            story = "\n".join(self.steps[-STEPS_SHOWN:])
            self.differences.append(f"{story}\nours:  {mine}\nKafka: {real}")
        assert mine == real
        return real

    def settle(self) -> None:
        """Kafka writes its markers after it has answered."""
        for number in range(self.partitions):
            self.soon_same(lambda side, n=number: side.fetch(self.topic, n, 0, committed=True)[1])  # type: ignore[misc]

    @initialize()
    def begin(self) -> None:
        self.same(lambda side: side.create(self.topic, PARTITIONS))

    # --- records ----------------------------------------------------------------------------------

    @rule(partition=st.sampled_from([0, 0, 1, 1, 9]), count=st.integers(1, 3), key=labels)
    def write(self, partition: int, count: int, key: str) -> None:
        self.clock += 10
        at = self.clock
        self.same(
            lambda side: side.write(
                self.topic, partition, count=count, key=key.encode(), timestamp=at
            )
        )

    @rule(offset=st.integers(-1, 12), partition=partitions, committed=st.booleans())
    def read(self, offset: int, partition: int, committed: bool) -> None:
        self.same(lambda side: side.fetch(self.topic, partition, offset, committed=committed))

    @rule(
        at=st.one_of(st.sampled_from([-1, -2, -3]), st.integers(0, 12)),
        partition=partitions,
        committed=st.booleans(),
    )
    def find_by_time(self, at: int, partition: int, committed: bool) -> None:
        when = at if at < 0 else self.begun_ms + 7 * at

        def found(side: Side) -> object:
            error, offset, time_ms = side.offset(self.topic, partition, when, committed=committed)
            # A marker has the time at which it was written.
            return error, offset, time_ms if time_ms < self.begun_ms + MARKERS_MS else "marker"

        self.same(found)

    @rule(before=st.sampled_from([-1, 0, 1, 2, 5, 99]), partition=partitions)
    def trim(self, before: int, partition: int) -> None:
        self.same(lambda side: side.trim(self.topic, partition, before))

    # --- idempotent producers ---------------------------------------------------------------------

    @rule(writer=writers)
    def new_producer(self, writer: str) -> None:
        label = f"plain-{writer}"
        self.same(lambda side: side.begin(label, None, 60_000, None))
        for number in range(PARTITIONS):
            self.sequences.pop((label, number), None)

    @rule(
        writer=writers,
        partition=partitions,
        count=st.integers(1, 3),
        off=st.sampled_from([0, 0, 0, 0, "again", 1, 3, -1]),
        shift=st.sampled_from([0, 0, 0, 0, 0, 1, -1]),
    )
    def write_in_sequence(
        self, writer: str, partition: int, count: int, off: int | str, shift: int
    ) -> None:
        label = f"plain-{writer}"
        if label not in self.kafka.epochs:
            self.new_producer(writer=writer)
        self._write(label, partition, count, off, -1, shift)

    def _write(
        self,
        label: str,
        partition: int,
        count: int,
        off: int | str,
        which: int,
        shift: int,
        *,
        transactional: str | None = None,
    ) -> None:
        """A batch whose sequence is the next one, that of the batch before, or a wrong one."""
        place = label, partition
        right = self.sequences.get(place, 0)
        sequence = max(0, right + (off if isinstance(off, int) else 0))
        if off == "again" and place in self.last:
            sequence, count = self.last[place]
        _, epoch = self.kafka.epochs[label][which]
        if epoch + shift < 0:
            return
        error, offset, _ = self.same(
            lambda side: side.write(
                self.topic,
                partition,
                producer=label,
                which=which,
                shift=shift,
                sequence=sequence,
                transactional=transactional,
                count=count,
                timestamp=self.clock,
            )
        )
        if error == 0 and offset >= 0 and sequence + count > right:
            self.sequences[place] = sequence + count
            self.last[place] = sequence, count

    # --- transactions -----------------------------------------------------------------------------

    @rule(writer=writers, which=st.sampled_from([None, None, -1, -2]))
    def begin_producer(self, writer: str, which: int | None) -> None:
        held = self.kafka.epochs.get(writer, [])
        given = which if which is not None and len(held) >= -which else None
        error, _ = self.same(
            lambda side: side.begin(writer, writer_id(self, writer), 60_000, given)
        )
        self.settle()
        if not error:
            self.open.discard(writer)
            for number in range(PARTITIONS):
                self.sequences.pop((writer, number), None)
                self.last.pop((writer, number), None)

    def _which(self, writer: str, which: int) -> int:
        """An epoch of it that there is."""
        if writer not in self.kafka.epochs:
            self.begin_producer(writer=writer, which=None)
        return max(which, -len(self.kafka.epochs[writer]))

    @rule(writer=writers, which=earlier, both=st.booleans(), wrong=st.sampled_from([0, 0, 0, 0, 9]))
    def add_partitions(self, writer: str, which: int, both: bool, wrong: int) -> None:
        which = self._which(writer, which)
        wanted = [*([0, 1] if both else [0]), *([wrong] if wrong else [])]
        self.same(lambda side: side.add(writer_id(self, writer), writer, which, self.topic, wanted))
        self.open.add(writer)

    @rule(
        writer=writers,
        which=earlier,
        partition=partitions,
        off=st.sampled_from([0, 0, 0, 0, "again", 1]),
    )
    def write_in_transaction(self, writer: str, which: int, partition: int, off: int | str) -> None:
        which = self._which(writer, which)
        name = writer_id(self, writer)
        self._write(writer, partition, 1, off, which, 0, transactional=name)

    @rule(writer=writers, which=earlier, at=st.integers(0, 9))
    def commit_in_transaction(self, writer: str, which: int, at: int) -> None:
        which = self._which(writer, which)
        group = f"{writer}-{self.group}"  # of its own: two at once are told apart in docs/topics.md
        name = writer_id(self, writer)
        self.same(lambda side: side.add_offsets(name, writer, which, group, self.topic, at))
        self.open.add(writer)

    @rule(writer=writers, which=earlier, commit=st.booleans())
    def end_transaction(self, writer: str, which: int, commit: bool) -> None:
        which = self._which(writer, which)
        name = writer_id(self, writer)
        error = self.same(lambda side: side.end(name, writer, which, commit=commit))
        if not error:
            self.open.discard(writer)
        self.settle()
        group = f"{writer}-{self.group}"
        if not self.open:
            self.soon_same(lambda side: side.committed(group, self.topic))

    @precondition(lambda self: not self.open)
    @rule(commit=st.booleans())
    def let_a_transaction_time_out(self, commit: bool) -> None:
        """Nobody ends it in time; then its writer comes back."""
        name = f"late-{self.topic}"
        self.same(lambda side: side.begin("late", name, 400, None))
        self.same(lambda side: side.add(name, "late", -1, self.topic, [0]))
        self.same(
            lambda side: side.write(
                self.topic,
                0,
                producer="late",
                sequence=0,
                transactional=name,
                timestamp=self.clock,
            )
        )
        for side in (self.ours, self.kafka):
            eventually(lambda side=side: side.ended(self.topic), "it is aborted", SETTLE_S)  # type: ignore[misc]
        self.settle()
        self.same(lambda side: side.end(name, "late", -1, commit=commit))
        self.same(lambda side: side.begin("late", name, 400, -1))

    # --- groups -----------------------------------------------------------------------------------

    @rule(comers=st.lists(labels, min_size=1, max_size=3, unique=True))
    def join(self, comers: list[str]) -> None:
        """Some come, or come again; who is missing is out after a while."""
        self._join(comers, "range")

    @precondition(lambda self: self.joined)
    @rule()
    def join_with_another_protocol(self) -> None:
        self._join(self.joined[:1], "roundrobin")

    def _join(self, comers: list[str], protocol: str) -> None:
        found = self.same(lambda side: side.join(self.group, comers, protocol))
        good = {label: one for label, one in found.items() if label != "list" and one[0] == 0}
        if not good:
            return
        self.generation = max(one[1] for one in good.values())
        self.joined = [label for label, one in good.items() if one[1] == self.generation]
        # At once: who does not come in time is out, and that is another step's business.
        if {self.ours.leader, self.kafka.leader} <= set(self.joined):
            self.sync(shift=0)
        if self.ours.leader != self.kafka.leader:
            # Each is right, and from now on they would answer differently.
            self.same(lambda side: side.leave(self.group, sorted(side.members)))
            self.joined = []

    @precondition(lambda self: {self.ours.leader, self.kafka.leader} <= set(self.joined))
    @rule(shift=st.sampled_from([0, 0, 0, 1]))
    def sync(self, shift: int) -> None:
        self.same(lambda side: side.sync(self.group, self.joined, self.generation + shift))

    @rule(label=labels, shift=st.sampled_from([0, 0, 1, -1]))
    def beat(self, label: str, shift: int) -> None:
        self.same(lambda side: side.beat(self.group, label, self.generation + shift))

    @rule(
        label=st.sampled_from(["a", "b", "c", ""]),
        shift=st.sampled_from([0, 0, 1]),
        at=st.integers(0, 9),
    )
    def commit(self, label: str, shift: int, at: int) -> None:
        generation = self.generation + shift if label else -1
        self.same(lambda side: side.commit(self.group, label, generation, self.topic, at))
        self.same(lambda side: side.committed(self.group, self.topic))

    @rule(leavers=st.lists(labels, min_size=1, max_size=2, unique=True), stay=st.booleans())
    def leave(self, leavers: list[str], stay: bool) -> None:
        """Some go; the others come again, or are out after a while, too."""
        known = set(self.kafka.members)
        self.same(lambda side: side.leave(self.group, leavers))
        left = [label for label in self.joined if label not in leavers]
        if left and stay and known & set(leavers):
            self.join(comers=left)
        elif left:
            self.same(lambda side: (side.is_settled(self.group), side.describe(self.group)))
        self.joined = left

    @rule()
    def describe(self) -> None:
        self.same(lambda side: side.describe(self.group))

    @rule()
    def delete_the_group(self) -> None:
        error = self.same(lambda side: side.delete_group(self.group))
        if not error:
            self.generation, self.joined = 0, []
        self.same(lambda side: side.committed(self.group, self.topic))

    @rule()
    def forget_the_offset(self) -> None:
        self.same(lambda side: side.forget_offset(self.group, self.topic))
        if self.same(lambda side: side.describe(self.group)[3]) == []:
            # Kafka keeps a group without members and offsets until it cleans up.
            for side in (self.ours, self.kafka):
                side.delete_group(self.group)
            self.generation, self.joined = 0, []

    # --- topics -----------------------------------------------------------------------------------

    @rule(
        change=st.sampled_from(
            [
                ("retention.ms", 0, "1000000000"),
                ("retention.ms", 1, None),
                ("retention.ms", 0, "soon"),
                ("max.message.bytes", 0, "90"),
                ("max.message.bytes", 1, None),
                ("cleanup.policy", 2, "compact"),
                ("cleanup.policy", 3, "compact"),
                ("cleanup.policy", 0, "burn"),
                ("no.such.setting", 0, "1"),
            ]
        )
    )
    def alter(self, change: tuple[str, int, str | None]) -> None:
        self.same(lambda side: side.alter(self.topic, *change))
        self.soon_same(lambda side: side.configs(self.topic, list(CONFIGS)))

    @rule(count=st.sampled_from([1, 2, 3]))
    def grow(self, count: int) -> None:
        if not self.same(lambda side: side.grow(self.topic, count)):
            self.partitions = count

    @precondition(lambda self: not self.open)
    @rule(chance=st.integers(0, 3))
    def delete_and_create(self, chance: int) -> None:
        if chance:
            return
        self.same(lambda side: side.delete(self.topic))
        self.same(lambda side: side.write(self.topic, 0, timestamp=self.clock))
        self.same(lambda side: side.create(self.topic, PARTITIONS))
        self.partitions = PARTITIONS
        self.sequences.clear()
        self.last.clear()


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | str | list | tuple)


def writer_id(machine: Beside, writer: str) -> str:
    """Its transactional id: of this example alone."""
    return f"{writer}-{machine.topic}"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    require_part(kafka_missing())
    with (
        BrokerServer(tmp_path_factory.mktemp("ours"), options=OURS) as ours,
        KafkaServer(tmp_path_factory.mktemp("kafka"), properties=KAFKA) as theirs,
    ):
        yield ours.hosts, theirs.hosts


def test_random_steps_have_the_same_answers_as_a_real_kafka(hosts: tuple[str, str]) -> None:
    chosen = os.environ.get("HOLDFAST_TOPICS_SEED")
    explores = "HOLDFAST_EXPLORE" in os.environ
    seed = int(chosen) if chosen else random.SystemRandom().getrandbits(32) if explores else 19
    print(f"HOLDFAST_TOPICS_SEED={seed}")

    Beside.hosts = hosts
    Beside.differences.clear()
    try:
        run_state_machine_as_test(
            hypothesis.seed(seed)(Beside),
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=STEPS,
                deadline=None,
                derandomize=False,
                database=None,
                # A step back costs as much as a step: what differs is shown as it was found.
                phases=(Phase.generate,),
                suppress_health_check=list(HealthCheck),
            ),
        )
    except (AssertionError, Flaky):
        if not Beside.differences:
            raise
    assert not Beside.differences, Beside.differences[0]
