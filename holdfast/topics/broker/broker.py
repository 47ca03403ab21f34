"""The broker: what frames mean, what is applied when, and what time brings.

All of it runs in one event loop and never waits: durable writes come back from the pipeline, time
comes from a sweep.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from holdfast.system import logs
from holdfast.system.clock import Clock
from holdfast.system.tasks import OwnedThread, in_loop, start_thread
from holdfast.topics.broker.cleaner import Cleaner
from holdfast.topics.broker.connection import KafkaConnection
from holdfast.topics.broker.core import acls, commands
from holdfast.topics.broker.core.acls import Operation, ResourceKind
from holdfast.topics.broker.core.commands import Acl, AnyCommand
from holdfast.topics.broker.core.group import Effects, GroupAnswer, Save
from holdfast.topics.broker.core.groups import GroupTable
from holdfast.topics.broker.core.state import (
    BrokerState,
    CommandOutcome,
    TopicGone,
    TopicMade,
    Written,
)
from holdfast.topics.broker.disk.store import BrokerStore, StoreCheckpoint
from holdfast.topics.broker.fetching import Fetches
from holdfast.topics.broker.incoming import IncomingMemory
from holdfast.topics.broker.pipeline import Then, WritePipeline, Writes
from holdfast.topics.broker.protocol import apis, cluster, codec
from holdfast.topics.broker.protocol.apis import Api
from holdfast.topics.broker.protocol.codec import MalformedMessage
from holdfast.topics.broker.protocol.codes import ErrorCode
from holdfast.topics.broker.request import ClientRequest
from holdfast.topics.broker.users import Users
from holdfast.wire.errors import Full

# A consumer has two connections, a producer one; each is a file handle.
CONNECTIONS_MAX: Final = 10_000
# Produce requests that wait for the disk; beyond it new ones wait in their sockets.
WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
# How often time is looked at.
SWEEP_S: Final = 0.1
# Logs that are looked into after a start, each about a quarter of a millisecond.
SETTLED_PER_SWEEP: Final = 20
# How often transactions are looked for whose time is over; Kafka does it every ten seconds.
EXPIRE_S: Final = 1.0
# How often logs are looked at that may be too old or too large.
RETENTION_S: Final = 30.0
# How often producers and offsets are looked for that nobody needs any more.
FORGET_S: Final = 600.0
# Who is to log in has so long; a connection on which nothing is asked, as long as with Kafka.
LOGIN_S: Final = 10.0
IDLE_S: Final = 600.0
IDLE_LOOK_S: Final = 5.0
# A failed checkpoint is tried again after this.
CHECKPOINT_RETRY_S: Final = 5.0
# Members whose broker was away for longer than this get a fresh time-out.
PAUSE_S: Final = 2.0
OFFSETS_IDLE_MS: Final = 7 * 24 * 3600 * 1000
NODE_ID: Final = 1

log = logs.get(__name__)


@dataclass(slots=True)
class BrokerSettings:
    """How a broker behaves. `address` is what it tells clients to connect to."""

    address: tuple[str, int] = ("127.0.0.1", 0)
    auto_create: bool = True
    default_partitions: int = 1
    group_delay_ms: int = 0
    partitions_max: int = 20_000
    retention_s: float = RETENTION_S


class Broker:
    """The state in memory and everyone connected to it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: BrokerStore,
        clock: Clock,
        settings: BrokerSettings,
        users: Users,
        handlers: Mapping[Api, Callable[[Broker, ClientRequest], None]],
        *,
        on_broken: Callable[[BaseException], None],
    ) -> None:
        self.loop = loop
        self.store = store
        self.clock = clock
        self.settings = settings
        self.users = users
        self._handlers = handlers
        self.connections: set[KafkaConnection] = set()
        self.incoming = IncomingMemory()
        self._held_back: set[KafkaConnection] = set()  # until the disk has caught up
        self.groups = GroupTable(
            store.state.groups, self.now_ms(), initial_delay_ms=settings.group_delay_ms
        )
        self.fetches = Fetches(loop, clock, store, self.may)
        self.pipeline = WritePipeline(
            loop,
            store,
            clock,
            on_durable=self._apply,
            on_full=self._disk_full,
            on_broken=on_broken,
        )
        self.cleaner = Cleaner(loop, store, clock, self._checkpoint_died)
        self.disk_full = ""
        self._applied = store.last
        self._checkpoint: OwnedThread | None = None
        self._checkpoint_after_s = 0.0
        now_s = clock.now_s()
        self._swept_s = self._retained_s = self._forgot_s = now_s
        self._looked_s = self._expired_s = now_s
        self._on_broken = on_broken
        if store.is_waiting:
            self._segments_full()

    @property
    def state(self) -> BrokerState:
        return self.store.state

    def now_ms(self) -> int:
        """The time by which members of groups live."""
        return int(self.clock.now_s() * 1000)

    # --- connections --------------------------------------------------------------------------

    def connected(self, link: KafkaConnection) -> None:
        if len(self.connections) >= CONNECTIONS_MAX and self.users.required:
            self._end_oldest_stranger()
        if len(self.connections) >= CONNECTIONS_MAX:
            log.warning("connection refused: too many", limit=CONNECTIONS_MAX)
            link.abort()
            return
        link.since_s = self.clock.now_s()
        if not self.users.required:
            link.principal = "User:ANONYMOUS"
        self.connections.add(link)

    def _end_oldest_stranger(self) -> None:
        """Those who do not log in keep nobody out."""
        strangers = (one for one in self.connections if not one.principal)
        oldest = min(strangers, key=lambda one: one.since_s, default=None)
        if oldest is not None:
            oldest.abort()
            self.connections.discard(oldest)

    def disconnected(self, link: KafkaConnection) -> None:
        self.incoming.drop(link)
        self.connections.discard(link)
        self._held_back.discard(link)
        self.fetches.drop(link)

    def takes_more(self, link: KafkaConnection) -> bool:
        if self.pipeline.waiting_bytes < WAITING_BYTES_MAX:
            return True
        self._held_back.add(link)
        return False

    def close_all(self) -> None:
        for link in list(self.connections):
            link.close()

    # --- what a frame means -------------------------------------------------------------------

    def frame(self, link: KafkaConnection, frame: bytes) -> None:
        """One request. What cannot be understood closes the connection, as Kafka does."""
        try:
            if self.users.takes_raw(link):
                self.users.raw_token(link, frame)
                return
            head = apis.read_head(frame)
            api = apis.APIS.get(head.key)
            if api is None or not api.knows(head.version):
                self._unknown(link, head)
                return
            if not link.principal and api not in _BEFORE_LOGIN:
                log.warning("connection closed: it has not logged in", peer=link.peer)
                link.abort()
                return
            body: object = codec.decode(
                api.request, head.version, api.is_flexible(head.version), frame, head.body
            )
        except MalformedMessage as error:
            log.warning("connection closed: a request is malformed", peer=link.peer, why=str(error))
            link.abort()
            return
        if link.principal:
            link.since_s = self.clock.now_s()
        try:
            self._handlers[api](self, ClientRequest(link, api, head, body, link.open_slot(api)))
        except Exception:
            # A bug of ours: this client is told nothing wrong, and the others go on.
            log.exception("connection closed: its request was not handled", api=api.name)
            link.abort()

    def _unknown(self, link: KafkaConnection, head: apis.RequestHead) -> None:
        if head.key != apis.API_VERSIONS.key:
            log.warning(
                "connection closed: no such request",
                peer=link.peer,
                api=head.key,
                version=head.version,
            )
            link.abort()
            return
        # Who asks in a later version is told in the first one which we speak.
        ours = apis.API_VERSIONS
        known = cluster.ApiVersion(api_key=ours.key, min_version=ours.first, max_version=ours.last)
        refusal = cluster.ApiVersionsResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[known]
        )
        answer = apis.encode_response(ours, 0, head.correlation_id, refusal)
        link.open_slot(ours).fill(answer)

    def may(
        self, request: ClientRequest, operation: Operation, kind: ResourceKind, name: str
    ) -> bool:
        """Whether whoever asks may do this."""
        link = request.link
        if self.users.is_super(link.principal):
            return True
        return acls.allows(self.acls_of(link), link.principal, link.host, operation, kind, name)

    def acls_of(self, link: KafkaConnection) -> Iterable[Acl]:
        """The access list, and what the role of whoever asks adds to it."""
        return chain(self.users.rules(link.principal), self.state.acls)

    # --- writing ------------------------------------------------------------------------------

    def write(self, asked: Sequence[AnyCommand], then: Then, size: int = 256) -> None:
        """Make these durable and apply them, then call `then` with what became of each."""
        if not asked:
            then([])
            return
        if self.disk_full and not all(isinstance(one, _MAKES_ROOM) for one in asked):
            refused = CommandOutcome(ErrorCode.KAFKA_STORAGE_ERROR, self.disk_full)
            then([refused] * len(asked))
            return
        self.pipeline.submit(list(asked), then, size)

    def _apply(self, group: list[Writes], time_ms: int, size: int) -> None:
        """A group is durable: it counts from now on."""
        self.disk_full = ""
        count = 0
        written: dict[tuple[bytes, int], int] = {}
        answers: list[tuple[Then, list[CommandOutcome]]] = []
        for writes in group:
            outcomes = []
            for command in writes.commands:
                outcome = self.state.apply(command, time_ms)
                self.store.execute(outcome.effects)
                for effect in outcome.effects:
                    if isinstance(effect, Written):
                        key = effect.topic_id, effect.partition
                        written[key] = written.get(key, 0) + len(effect.data)
                    elif isinstance(effect, TopicMade | TopicGone):
                        self.fetches.topics_changed()
                outcomes.append(outcome)
            count += len(outcomes)
            answers.append((writes.then, outcomes))
        self._applied += count
        self.store.count(count, size)
        if not self.store.write_waiting():
            self._segments_full()
        for then, outcomes in answers:
            then(outcomes)
        self.fetches.wake(written)
        if self._held_back and self.pipeline.waiting_bytes < WAITING_BYTES_MAX // 2:
            held_back, self._held_back = self._held_back, set()
            for link in held_back:
                link.resume()
        if self.store.wants_checkpoint:
            self.checkpoint()

    def _disk_full(self, error: Full) -> None:
        log.error("writes are refused: the disk is full", error=error.what, fix=error.fix)

    def _segments_full(self) -> None:
        if not self.disk_full:
            log.error("writes are refused: no room for the segments", folder=str(self.store.folder))
        self.disk_full = f"no room on the disk for {self.store.folder}"

    # --- groups -------------------------------------------------------------------------------

    def follow(self, effects: Effects) -> None:
        """Do what the groups say."""
        for effect in effects:
            if isinstance(effect, GroupAnswer):
                assert isinstance(effect.token, ClientRequest)
                effect.token.answer(effect.response)
            else:
                self._save_group(effect)

    def _save_group(self, save: Save) -> None:
        def saved(outcomes: list[CommandOutcome]) -> None:
            done = self.groups.saved if not outcomes[0].error else self.groups.not_saved
            self.follow(done(save, self.now_ms()))

        self.write([commands.SaveGroup(save.group, save.saved)], saved)

    # --- checkpoints --------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Make the journal short again, beside everything else."""
        if self._checkpoint is not None or self.clock.now_s() < self._checkpoint_after_s:
            return
        if not self.store.can_checkpoint:
            return
        work = self.store.begin_checkpoint(self._applied)

        def run() -> None:
            error: BaseException | None = None
            try:
                self.store.finish_checkpoint(work)
            except (OSError, Full) as failure:
                error = failure
            in_loop(self.loop, self._checkpointed, work, error)

        self._checkpoint = start_thread(run, "topics-checkpoint", self._checkpoint_died)

    def _checkpoint_died(self, error: BaseException) -> None:
        in_loop(self.loop, self._on_broken, error)

    def _checkpointed(self, work: StoreCheckpoint, error: BaseException | None) -> None:
        if self._checkpoint is not None:
            self._checkpoint.join()
        self._checkpoint = None
        if error is not None:
            log.warning("a checkpoint failed: the journal stays longer", why=str(error))
            self._checkpoint_after_s = self.clock.now_s() + CHECKPOINT_RETRY_S
            self.store.checkpoint_failed()
        else:
            self.store.checkpoint_done(work)

    def end_threads(self) -> None:
        """Wait for a checkpoint that runs, and for compaction."""
        if self._checkpoint is not None:
            self._checkpoint.join()
            self._checkpoint = None
        self.cleaner.close()

    # --- time ---------------------------------------------------------------------------------

    def sweep(self) -> None:
        """What has to happen because time passed."""
        now_s = self.clock.now_s()
        late_s, self._swept_s = now_s - self._swept_s - SWEEP_S, now_s
        if late_s > PAUSE_S:
            log.warning("the broker was paused; every member gets a fresh time-out", s=late_s)
            self.groups.refresh(self.now_ms())
        self.follow(self.groups.advance(self.now_ms()))
        if now_s - self._expired_s >= EXPIRE_S:
            self._expired_s = now_s
            self._expire_transactions()
        if self.disk_full and self.store.write_waiting():
            self.disk_full = ""
        self.store.settle(SETTLED_PER_SWEEP)
        if self.store.is_waiting:
            self._segments_full()
        self.incoming.sweep(now_s)
        if self.store.wants_checkpoint:
            self.checkpoint()
        if now_s - self._retained_s >= self.settings.retention_s:
            self._retained_s = now_s
            self._retain()
            self.cleaner.look()
            if self.cleaner.waits_for_snapshot():
                self.checkpoint()
        if now_s - self._forgot_s >= FORGET_S:
            self._forgot_s = now_s
            self._forget_idle()
        if now_s - self._looked_s >= IDLE_LOOK_S:
            self._looked_s = now_s
            self._close_idle(now_s)

    def _close_idle(self, now_s: float) -> None:
        for link in list(self.connections):
            most_s = IDLE_S if link.principal else LOGIN_S
            if now_s - link.since_s > most_s:
                log.debug("connection closed: nothing is asked on it", peer=link.peer)
                link.abort()

    def _expire_transactions(self) -> None:
        now_ms = self.clock.wall_ms()
        due = [held for held in self.state.transactions.by_id.values() if held.is_due(now_ms)]
        if due and not self.disk_full:
            asked = [commands.ExpireTransaction(held.transactional_id) for held in due]
            self.write(asked, lambda _outcomes: None)

    def _retain(self) -> None:
        """Let go what topics do not keep any longer."""
        now_ms = self.clock.wall_ms()
        asked: list[AnyCommand] = []
        for (topic_id, number), held in self.store.logs.items():
            topic = self.state.by_id.get(topic_id)
            if topic is None or not held.segments or not self.store.is_settled((topic_id, number)):
                continue
            partition = topic.partitions[number]
            start, stable = partition.log_start, partition.last_stable_offset
            until = min(held.expired_until(topic.settings, start, stable, now_ms), stable)
            if until > start:
                asked.append(commands.Trim(topic_id, number, until))
        if asked:
            self.write(asked, lambda _outcomes: None)

    def _forget_idle(self) -> None:
        """Producers that are silent for a day, offsets of groups that are gone for a week."""
        asked: list[AnyCommand] = [commands.ForgetIdle()]
        oldest_ms = self.clock.wall_ms() - OFFSETS_IDLE_MS
        for group, offsets in self.state.offsets.items():
            if self.groups.is_live(group):
                continue
            idle = [
                (topic, partition)
                for topic, held in offsets.items()
                for partition, one in held.items()
                if one.committed_ms < oldest_ms
            ]
            if idle:
                asked.append(commands.DeleteOffsets(group, idle))
        self.write(asked, lambda _outcomes: None)


# What is taken on a full disk, too.
_MAKES_ROOM: Final = (commands.DeleteTopic, commands.Trim)
_BEFORE_LOGIN: Final = (apis.API_VERSIONS, apis.SASL_HANDSHAKE, apis.SASL_AUTHENTICATE)
