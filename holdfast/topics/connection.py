"""A cluster of brokers, and everything that this process has opened of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol, Self, TypeVar

from holdfast.topics.address import TopicsAddress
from holdfast.topics.admin import TopicAdmin
from holdfast.topics.codecs import BYTES, RecordCodec
from holdfast.topics.consumer import Consumer
from holdfast.topics.producer import Producer
from holdfast.topics.records import Record
from holdfast.topics.subscription import RETRIES, Subscription
from holdfast.topics.transaction import TopicTransaction, TransactionalProducer
from holdfast.wire import worker_messages
from holdfast.wire.errors import Usage

# Where the cluster is, for a job that a cluster started.
ADDRESS_VARIABLE: Final = worker_messages.TOPICS_VARIABLE


class Closable(Protocol):
    """What a connection has opened, and closes."""

    @property
    def closed(self) -> bool: ...

    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


def connect(address: str | TopicsAddress | None = None) -> Connection:
    """The cluster at an address (`kafka://host1,host2?…`); without one, the cluster that started
    this process. Nothing is asked yet: brokers may come later, and whoever asks then waits."""
    if address is None:
        address = _address_of_cluster(os.environ)
        if not address:
            raise Usage(
                "no address of topics is given",
                why=f"{ADDRESS_VARIABLE} is not set: no cluster with topics has started this",
                fix="topics.connect('kafka://host1:9092,host2:9092')",
            )
    return Connection(TopicsAddress.parse(address))


def _address_of_cluster(environment: Mapping[str, str]) -> str:
    """What the cluster that started this process has said of topics: at its start, or since then
    in the worker's folder; "": nothing."""
    given = environment.get(ADDRESS_VARIABLE, "")
    folder = environment.get(worker_messages.FOLDER_VARIABLE)
    if not given and folder is not None:
        with suppress(OSError):
            return Path(folder, worker_messages.TOPICS_NAME).read_text()
    return given


class Connection:
    """Opens producers, consumers and the rest, and closes what is still open. Any thread may use
    it. Names are those of the API: the address's prefix is put before them on the wire."""

    def __init__(self, address: TopicsAddress) -> None:
        self.address = address
        self._lock = threading.Lock()
        self._beginning = threading.Lock()  # of a transactional producer, which asks the cluster
        self._opened: list[Closable] = []
        self._transactional: dict[str, TransactionalProducer] = {}
        self._admin: TopicAdmin | None = None
        self._closed = False

    def producer(self, **settings: Any) -> Producer:
        """A producer; settings: `codec`, `linger_ms`, `compression` (gzip, lz4, snappy, zstd),
        `buffer_bytes`, `delivery_s`, `send_s`."""
        return self._open(lambda: Producer(self.address, **settings))

    def consumer(self, *topics: str, **settings: Any) -> Consumer:
        """A consumer of these topics; settings: `group`, `start` ("earliest", "latest", positions),
        `committed` (False: also records of transactions that are open or aborted), `static_id`,
        `codec`, `on_revoked`, `session_s`, `poll_every_s`, `away_s`."""
        return self._open(lambda: Consumer(self.address, topics, **settings))

    def subscribe(
        self,
        topic: str,
        fn: Callable[[Record], object],
        *,
        group: str | None = None,
        retries: int = RETRIES,
        on_failed: Callable[[BaseException], None] | None = None,
        **settings: Any,
    ) -> Subscription:
        """Call `fn` for each record in a thread. With a group, each record goes to one of its
        members, from where it had come; without, to every subscriber, from now on."""
        settings.setdefault("start", "latest" if group is None else "earliest")
        return self._open(
            lambda: Subscription(
                Consumer(self.address, [topic], group=group, **settings),
                fn,
                retries=retries,
                on_failed=on_failed,
            )
        )

    def transaction(
        self, transactional_id: str, consumer: Consumer | None = None, codec: RecordCodec = BYTES
    ) -> TopicTransaction:
        """What is sent in it, and with `commit_offsets` what was read for it, counts as one, or not
        at all. With `consumer`, all that it has read belongs to it. The id is a writer's, for as
        long as there is one: a new process with it fences the old one."""
        return TopicTransaction(
            lambda: self._transactional_producer(transactional_id), codec, consumer
        )

    @property
    def admin(self) -> TopicAdmin:
        with self._lock:
            self._refuse_if_closed()
            if self._admin is None:
                self._admin = TopicAdmin(self.address)
            return self._admin

    def close(self) -> None:
        """Close what is open, the last first; records that could not be written are told here."""
        with self._lock:
            self._closed = True
            opened, self._opened = self._opened, []
            self._admin = None
            self._transactional.clear()
        first: BaseException | None = None
        for one in reversed(opened):
            try:
                one.close()
            except Exception as error:  # of each, also of a subscriber's function
                if first is None:
                    first = error
                else:
                    first.add_note(str(error))
        if first is not None:
            raise first

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<topics at {self.address}>"

    # --- inside -----------------------------------------------------------------------------------

    def _open(self, make: Callable[[], C]) -> C:
        with self._lock:
            self._refuse_if_closed()
            self._opened = [one for one in self._opened if not one.closed]
            made = make()
            self._opened.append(made)
            return made

    def _transactional_producer(self, transactional_id: str) -> TransactionalProducer:
        """The one of this id, as long as it can go on."""
        with self._beginning:
            held = self._transactional.get(transactional_id)
            if held is None or held.closed:
                producer = self._open(
                    lambda: Producer(self.address, transactional_id=transactional_id)
                )
                held = self._transactional[transactional_id] = TransactionalProducer(producer)
            return held

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise Usage("the connection is closed", fix="topics.connect() opens another one")
