"""A user's function as a subscriber: the program that `holdfast subscribe` keeps alive.

    python -m holdfast.topics.subscriber --topic orders --group g --run handler.py:fn

`fn(record)` is called at least once for each record, one at a time, in the order of its partition.
An error is tried again after a pause that grows; after so many tries the record goes to the topic
of dead letters, with the reason in its headers, and the partition goes on. So does a record that
ends the whole process (a crash, memory): how often it was begun is kept with the group's offset.
SIGTERM and SIGINT end it after the record under way.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import inspect
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from holdfast.system import backoff, logs, process
from holdfast.topics.codecs import BYTES, JSON, TEXT, RecordCodec
from holdfast.topics.connection import Connection, connect
from holdfast.topics.records import Record, TopicPosition
from holdfast.topics.triggered import meets
from holdfast.wire.errors import HoldfastError, Missing, RetryError, Usage
from holdfast.wire.record_filter import RecordFilter, parse_filter

T = TypeVar("T")

DEAD_SUFFIX: Final = ".dead"
TRIES: Final = 5
PAUSE_S: Final = 0.5
PAUSE_S_MAX: Final = 30.0
CODECS: Final[dict[str, RecordCodec]] = {"json": JSON, "text": TEXT, "bytes": BYTES}
# A call may take so long before the group gives its partition to another member.
CALL_S: Final = 3_600.0
# After a process has died, others get its partitions within this. Its heart is not Python's.
SESSION_S: Final = 10.0
# After a partition was given to this process, so many records are committed one by one: if one of
# them ends the process, it is the first that the next process sees.
_CAREFUL: Final = 100
# Later commits are for some records together; a record that was handled may come again then.
_COMMIT_RECORDS: Final = 100
_POLL_S: Final = 0.5
_DEAD_S: Final = 60.0
_TRIES_NOTE: Final = "tries="
# Headers of a dead letter. Kafka takes a megabyte with the record itself.
_REASON_CHARACTERS: Final = 1_000
_TRACE_CHARACTERS: Final = 8_000

log = logs.get(__name__)

Handler = Callable[[Record], Any]


@dataclass(frozen=True, slots=True)
class SubscriberOptions:
    """What is subscribed to, and how often a record is tried. `dead`: where dead letters go."""

    topic: str
    group: str
    dead: str = ""
    tries: int = TRIES
    pause_s: float = PAUSE_S
    pause_s_max: float = PAUSE_S_MAX
    start: str = "earliest"
    codec: str = "json"
    filter: str = ""

    @property
    def dead_topic(self) -> str:
        return self.dead or self.topic + DEAD_SUFFIX


class Subscriber:
    """Calls the handler for each record until `stop` is set."""

    def __init__(
        self,
        cluster: Connection,
        options: SubscriberOptions,
        handler: Handler,
        stop: threading.Event,
    ) -> None:
        self.handled = self.dead = 0
        self._cluster = cluster
        self._options = options
        self._handler = handler
        self._stop = stop
        self._filter: RecordFilter | None = parse_filter(options.filter) if options.filter else None
        self._consumer = cluster.consumer(
            options.topic,
            group=options.group,
            start=options.start,
            codec=CODECS[options.codec],
            poll_every_s=CALL_S,
            session_s=SESSION_S,
        )
        # How many records of each partition were taken since it was given to this process.
        self._since: dict[tuple[str, int], int] = {}
        self._uncommitted: dict[tuple[str, int], Record] = {}

    def run(self) -> None:
        """Until `stop` is set; what was handled is committed then."""
        try:
            while not self._stop.is_set():
                records = self._patiently(lambda: self._consumer.poll(_POLL_S, records_max=1))
                owned = set(self._consumer.partitions())
                self._since = {place: n for place, n in self._since.items() if place in owned}
                for record in records or ():
                    self._take(record)
                if not records or (len(self._uncommitted) and self.handled % _COMMIT_RECORDS == 0):
                    self._commit()
        finally:
            self._commit()
            self._consumer.close()

    def _take(self, record: Record) -> None:
        place = record.topic, record.partition
        begun = self._since.get(place, 0)
        self._since[place] = begun + 1
        tried = self._begin(record) if not begun else 0
        if tried >= self._options.tries:
            reason = f"the process that handled it ended, {tried} times"
            self._send_to_dead_letters(record, reason, "ProcessEnded", "", tried)
        elif self._wants(record) and not self._handle(record):
            self._leave(record)
            return
        self.handled += 1
        self._uncommitted[place] = record
        if begun < _CAREFUL:
            self._commit()

    def _wants(self, record: Record) -> bool:
        return self._filter is None or meets(self._filter, record)

    def _begin(self, record: Record) -> int:
        """How often the record was begun by a process that then ended. It is noted once more."""
        at = TopicPosition(record.topic, record.partition, record.offset)
        known = self._patiently(lambda: self._consumer.committed_note(at)) or ""
        count = known.removeprefix(_TRIES_NOTE)
        tried = int(count) if known.startswith(_TRIES_NOTE) and count.isdecimal() else 0
        if tried < self._options.tries:
            note = f"{_TRIES_NOTE}{tried + 1}"
            self._patiently(lambda: self._consumer.commit(at, note=note))
        return tried

    def _leave(self, record: Record) -> None:
        """It is to end before the record is handled: that is no try, and the record comes again."""
        at = TopicPosition(record.topic, record.partition, record.offset)
        self._patiently(lambda: self._consumer.commit(at, note=""), although_ending=True)

    def _handle(self, record: Record) -> bool:
        """Call the handler until it returns, or the tries are used up; False: this is to end."""
        options = self._options
        for attempt in range(1, options.tries + 1):
            try:
                _check_ran(self._handler(record))
            except Exception as error:  # whatever a user's function raises
                told = f"{type(error).__name__}: {_words(error)}"
                log.warning("the handler failed", record=str(record), attempt=attempt, error=told)
                if attempt == options.tries:
                    trace = "".join(traceback.format_exception(error))
                    self._send_to_dead_letters(record, told, type(error).__name__, trace, attempt)
                elif self._stop.wait(
                    backoff.pause_s(attempt, options.pause_s, options.pause_s_max)
                ):
                    return False
            else:
                return True
        return True

    def _send_to_dead_letters(
        self, record: Record, reason: str, error: str, trace: str, tries: int
    ) -> None:
        """To the topic of dead letters; returns when it is there."""
        options = self._options
        headers: dict[str, str | bytes | None] = {
            **record.headers,
            "holdfast.reason": reason[:_REASON_CHARACTERS],
            "holdfast.error": error,
            "holdfast.traceback": trace[-_TRACE_CHARACTERS:],
            "holdfast.topic": record.topic,
            "holdfast.partition": str(record.partition),
            "holdfast.offset": str(record.offset),
            "holdfast.group": options.group,
            "holdfast.tries": str(tries),
        }
        sent = {
            name: v.encode(errors="backslashreplace") if isinstance(v, str) else v
            for name, v in headers.items()
        }

        def send() -> object:
            self._cluster.admin.ensure(options.dead_topic)
            with self._cluster.producer(codec=BYTES) as producer:
                letter = producer.send(
                    options.dead_topic, record.raw, key=record.key, headers=sent, at=record.at
                )
                return letter.result(_DEAD_S)

        self._patiently(send, although_ending=True)
        self.dead += 1
        log.error(
            "a record is given up", record=str(record), reason=reason, topic=options.dead_topic
        )

    def _commit(self) -> None:
        done, self._uncommitted = list(self._uncommitted.values()), {}
        if done:
            self._patiently(lambda: self._consumer.commit(done), although_ending=True)

    def _patiently(self, step: Callable[[], T], *, although_ending: bool = False) -> T | None:
        """What it returns; again and again while brokers are away, until this is to end."""
        attempt = 0
        while True:
            try:
                return step()
            except RetryError as error:
                attempt += 1
                log.warning("topics are away; it goes on", error=error.sentence)
                pause_s = backoff.pause_s(attempt, PAUSE_S, PAUSE_S_MAX)
                if self._stop.wait(pause_s) and (not although_ending or attempt > 1):
                    return None


def handler_of(text: str) -> Handler:
    """The function that `FILE.py:NAME` names; one that is `async` is run to its end."""
    file, _, name = text.rpartition(":")
    path = Path(file)
    if not file.endswith(".py") or not name.isidentifier():
        raise Usage(f"{text} is not FILE.py:FUNCTION", fix="--run handler.py:fn")
    if not path.is_file():
        raise Missing(f"there is no file {path}", fix="name a file of the bundle")
    sys.path.insert(0, str(path.parent.absolute()))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    found = getattr(module, name, None)
    if not callable(found):
        raise Missing(f"{path} has no function {name}", fix=f"def {name}(record): ...")
    if inspect.isgeneratorfunction(found) or inspect.isasyncgenfunction(found):
        raise Usage(
            f"{name} in {path} has a `yield`",
            why="calling it runs nothing of it: every record would count as handled",
            fix=f"def {name}(record): ... without a `yield`; what it gives back is not used",
        )
    if inspect.iscoroutinefunction(found):
        return lambda record: asyncio.run(found(record))
    return found  # type: ignore[no-any-return]


def _check_ran(result: object) -> None:
    """`Usage`, if what the handler gave back is what it should have done."""
    if inspect.iscoroutine(result):
        result.close()  # nobody awaits it
    elif not inspect.isgenerator(result) and not inspect.isasyncgen(result):
        return
    raise Usage(
        f"the handler has returned a {type(result).__name__}, of which nothing has run",
        why="the record would count as handled",
        fix="let --run name a function that does the work: def fn(record), or async def fn(record)",
    )


def _words(error: BaseException) -> str:
    """What it says; also of one that cannot say it."""
    try:
        return str(error)
    except Exception as another:
        return f"(its text cannot be read: {type(another).__name__})"


def parsed(words: Sequence[str]) -> tuple[SubscriberOptions, str]:
    parser = argparse.ArgumentParser(prog="python -m holdfast.topics.subscriber")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--run", required=True, metavar="FILE.py:FUNCTION")
    parser.add_argument("--dead", default="")
    parser.add_argument("--tries", type=int, default=TRIES)
    parser.add_argument("--pause-s", type=float, default=PAUSE_S)
    parser.add_argument("--pause-s-max", type=float, default=PAUSE_S_MAX)
    parser.add_argument("--start", choices=("earliest", "latest"), default="earliest")
    parser.add_argument("--codec", choices=tuple(CODECS), default="json")
    parser.add_argument("--filter", default="")
    given = vars(parser.parse_args(words))
    run = given.pop("run")
    return SubscriberOptions(**given), run


def main(words: Sequence[str]) -> int:
    logs.set_up()
    options, run = parsed(words)
    stop = threading.Event()
    process.on_termination(stop.set)
    try:
        handler = handler_of(run)
        with connect() as cluster:
            Subscriber(cluster, options, handler, stop).run()
    except HoldfastError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
