"""The reader of the outbox: tells what happens in a cluster on its topics. One does at a time.

    EventTeller(session, connect, name).run(stop)

It reads the histories by watches, with a session of its own, and whoever decides never waits for
it. How far it has told is a zxid in a node that only the present teller can write. It is noted
after the topics have answered: so after a death, and after topics were away, the next one goes on
where it is sure that all was told, and what it tells again has the same ids.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from holdfast.coordination import (
    Election,
    ElectionLoop,
    Fact,
    Facts,
    Leadership,
    Mirror,
    Mirrored,
    Session,
    stamps,
)
from holdfast.coordination.waits import Wake
from holdfast.events.outbox import HistorySource, events_between, gap_of_plane, together
from holdfast.events.records import (
    CLUSTER,
    EVENTS_TOPIC,
    JOB,
    MODEL,
    MODEL_UPDATED_TOPIC,
    SERVICE,
    Event,
    encode,
    model_updated,
)
from holdfast.events.removals import REMOVALS
from holdfast.models.catalogue import read_model
from holdfast.system import logs
from holdfast.system.backoff import Backoff
from holdfast.topics import Connection, Producer
from holdfast.wire.documents import from_bytes, to_bytes
from holdfast.wire.errors import Fenced, HoldfastError, RetryError, SessionLost
from holdfast.wire.history import HistoryPage, audit_from, page_from, page_to
from holdfast.wire.names import (
    AUDIT_NAME,
    EVENTS_PATH,
    HISTORY_NAME,
    JOBS_PATH,
    MODELS_PATH,
    SERVICES_PATH,
)

POSITION: Final = f"{EVENTS_PATH}/position"
LEADER: Final = f"{EVENTS_PATH}/leader"
# What is written together, before it is noted how far that is.
EVENTS_TOGETHER: Final = 500
# The outbox is read so often at most: what happens meanwhile is told together.
TELL_EVERY_S: Final = 0.1
# Without a wake it looks all the same: a watch may have been lost with its connection.
LOOK_S: Final = 5.0
# Topics that have not answered by then are away, and are asked again after a pause.
TOLD_S: Final = 10.0
AWAY_S: Final = 0.5
AWAY_S_MAX: Final = 10.0

_log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class EventsPosition:
    """Everything up to this zxid was told."""

    zxid: int = 0


class EventTeller:
    """A candidate, and at times the one who tells. `connect` opens the cluster's topics; it is
    called again after they were away."""

    def __init__(
        self, session: Session, connect: Callable[[], Connection], name: str | None = None
    ) -> None:
        self._session = session
        self._facts = Facts(session)
        self._woken = threading.Event()
        self._sender = TopicsSender(connect)
        self._loop = ElectionLoop(session, Election(session, LEADER, name), self._woken.set)
        self._away = Backoff(AWAY_S, AWAY_S_MAX)
        self._trouble = ""  # what was said last

    def run(self, stop: threading.Event) -> None:
        """Stand, tell, and stand again, until `stop` is set."""
        with closing(self._sender):
            self._loop.run(stop, lambda leadership: self._lead(leadership, stop))

    def _lead(self, leadership: Leadership, stop: threading.Event) -> None:
        position = self._begin(leadership)
        outbox = Outbox(self._session, position, self._woken.set)
        with closing(outbox):
            while not stop.is_set() and not leadership.lost:
                self._woken.clear()
                pause_s = LOOK_S
                try:
                    if leadership.acting:
                        pause_s = self._tell(leadership, outbox)
                except (Fenced, SessionLost):
                    raise
                except RetryError as error:
                    _log.warning("the coordination plane does not answer", error=str(error))
                    pause_s = AWAY_S
                self._woken.wait(pause_s)
                stop.wait(TELL_EVERY_S)

    def _begin(self, leadership: Leadership) -> int:
        """How far others have told; and from now on removals are noted."""
        removals = self._facts.read(REMOVALS, fresh=True)
        fact = self._facts.read(POSITION, fresh=True)
        transaction = leadership.transaction()
        if removals is None:
            transaction.create(REMOVALS, page_to(HistoryPage()))
        if fact is None:
            transaction.create(POSITION, to_bytes(EventsPosition()))
        transaction.commit()
        return 0 if fact is None else from_bytes(POSITION, EventsPosition, fact.data).zxid

    def _tell(self, leadership: Leadership, outbox: Outbox) -> float:
        """Tell what is new; how long there may be nothing to do."""
        upto = outbox.refresh()
        if upto is None:
            return 0.0  # another connection: look again
        while True:
            events, upto_now = outbox.next_events(upto)
            if not events:
                outbox.acknowledge(upto)
                return LOOK_S
            leadership.check()
            try:
                self._sender.send(events)
            except HoldfastError as error:
                if str(error) != self._trouble:
                    _log.warning("topics are away; events wait for them", error=str(error))
                self._trouble = str(error)
                return self._away.failed()
            transaction = leadership.transaction()
            transaction.replace(POSITION, to_bytes(EventsPosition(upto_now))).commit()
            outbox.acknowledge(upto_now)
            self._away.succeeded()
            if self._trouble:
                _log.info("topics are back; events go on", events=len(events))
            self._trouble = ""


# --- topics ---------------------------------------------------------------------------------------


class TopicsSender:
    """Events to topics; for one thread. After a failure everything is opened anew."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._connection: Connection | None = None
        self._producer: Producer | None = None

    def send(self, events: Sequence[Event]) -> None:
        """Return when the topics have them all. After an error some may be there."""
        try:
            producer = self._producer or self._open()
            for event in events:
                self._send(producer, event)
            producer.flush(TOLD_S)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        connection, producer = self._connection, self._producer
        self._connection = self._producer = None
        if producer is not None:
            producer.abandon()
        if connection is not None:
            connection.close()

    def _open(self) -> Producer:
        self._connection = self._connect()
        for topic in (EVENTS_TOPIC, MODEL_UPDATED_TOPIC):
            self._connection.admin.ensure(topic, partitions=1)
        self._producer = self._connection.producer(delivery_s=TOLD_S)
        return self._producer

    def _send(self, producer: Producer, event: Event) -> None:
        at = int(event.at_s * 1000) or None
        headers = {"id": event.id, "kind": event.kind}
        key = f"{event.of}/{event.name}"
        # One partition has all: their order is what readers come for.
        producer.send(EVENTS_TOPIC, encode(event), key=key, headers=headers, at=at, partition=0)
        update = model_updated(event)
        if update is not None:
            value = msgspec.json.encode(update)
            producer.send(MODEL_UPDATED_TOPIC, value, key=event.name, headers=headers, at=at)


# --- the plane ------------------------------------------------------------------------------------


_Key = tuple[str, str, str]  # of a source: whose, which, which part
_OF: Final = {JOBS_PATH: JOB, SERVICES_PATH: SERVICE, MODELS_PATH: MODEL}


def _source_of(path: str) -> _Key:
    top, words = "/".join(path.split("/")[:3]), path.split("/")[3:]
    if top == EVENTS_PATH:
        return (CLUSTER, *words, HISTORY_NAME)  # type: ignore[return-value]  # its list of removals
    return (_OF[top], words[0], words[1] if len(words) > 1 else HISTORY_NAME)


class Outbox:
    """What is in the histories and was not told yet. For one thread; `wake` is called on others."""

    def __init__(self, session: Session, position: int, wake: Wake) -> None:
        self._session = session
        self._position = position
        self._anew: int | None = None  # the position in another plane, before this one
        self._mirrored: list[Mirrored[HistoryPage]] = [
            Mirrored(f"{JOBS_PATH}/*/{HISTORY_NAME}/*", self._page),
            Mirrored(f"{JOBS_PATH}/*/{AUDIT_NAME}", self._audit),
            Mirrored(f"{SERVICES_PATH}/*/{HISTORY_NAME}/*", self._page),
            Mirrored(f"{SERVICES_PATH}/*/{AUDIT_NAME}", self._page),
            Mirrored(f"{MODELS_PATH}/*", self._model),
            Mirrored(REMOVALS, self._page),
        ]
        self._mirror = Mirror(session, *self._mirrored, wake=wake)
        self._paths: dict[_Key, set[str]] = {}  # the nodes of each source
        self._untold: set[_Key] = set()  # the sources that may have something to tell

    def close(self) -> None:
        self._mirror.close()

    def refresh(self) -> int | None:
        """Read what has changed; the zxid up to which all is known now, of every source. None: the
        connection broke meanwhile, and nobody knows."""
        link = self._session.link
        upto = self._session.nodes.settled()
        if self._position > upto:
            _log.warning("the plane is another one; events begin anew", position=self._position)
            self._anew, self._position = self._position, 0
            self._mirror.invalidate()
        for path in self._mirror.refresh():
            key = _source_of(path)
            self._untold.add(key)
            if any(path in mirrored.values for mirrored in self._mirrored):
                self._paths.setdefault(key, set()).add(path)
            else:
                self._paths.get(key, set()).discard(path)
        return upto if self._session.link == link else None

    def next_events(self, upto: int) -> tuple[list[Event], int]:
        """The next that are told together, and the zxid up to which that is all."""
        sources = [HistorySource(*key, tuple(self._pages(key))) for key in self._untold]
        events = events_between(sources, self._position, upto)
        if self._anew is not None:
            events.insert(0, gap_of_plane(self._anew, upto))
        return together(events, upto, EVENTS_TOGETHER)

    def acknowledge(self, upto: int) -> None:
        """Let go of what was told."""
        self._position, self._anew = max(self._position, upto), None
        for key in list(self._untold):
            for mirrored in self._mirrored:
                for path in self._paths.get(key, set()) & mirrored.values.keys():
                    mirrored.values[path] = mirrored.values[path].newer_than(self._position)
            if not any(page.entries for page in self._pages(key)):
                self._untold.discard(key)
                if not self._paths.get(key):
                    self._paths.pop(key, None)

    def _pages(self, key: _Key) -> list[HistoryPage]:
        """Oldest first."""
        paths, every = sorted(self._paths.get(key, ())), self._mirrored
        return [one.values[path] for path in paths for one in every if path in one.values]

    def _page(self, path: str, found: Mapping[str, Fact]) -> HistoryPage:
        fact = found[path]
        return page_from(path, fact.data, fact.zxid).newer_than(self._position)

    def _audit(self, path: str, found: Mapping[str, Fact]) -> HistoryPage | None:
        fact = found[path]
        value: Any = stamps.decoded(path, fact.data).value
        if value is None:
            return None
        return audit_from(path, value, fact.zxid).newer_than(self._position)

    def _model(self, path: str, found: Mapping[str, Fact]) -> HistoryPage:
        return read_model(path, found[path]).history.newer_than(self._position)
