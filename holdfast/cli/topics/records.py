"""`holdfast topics produce` and `tail`: lines in, records out."""

from __future__ import annotations

import base64
import datetime
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.text import Text

from holdfast.cli import output
from holdfast.cli.options import ClusterOption, JsonOption
from holdfast.cli.topics.opening import (
    AddressOption,
    TopicArgument,
    check_known,
    open_topics,
    pairs,
    time_ms,
)
from holdfast.wire.errors import HoldfastError, Usage

if TYPE_CHECKING:
    from holdfast.topics import Producer, Record, TopicPosition

# What is under way when Ctrl-C comes is waited for so long.
_INTERRUPTED_S: Final = 1.0
PRODUCE_EXAMPLES = """[bold]Examples[/]

  [cyan]echo hello | holdfast topics produce clicks[/]

  [cyan]cat clicks.txt | holdfast topics produce clicks --key-separator :[/]   KEY:VALUE a line

  [cyan]holdfast topics produce clicks --header source=shell < clicks.txt[/]
"""
TAIL_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast topics tail clicks[/]                  the last ten

  [cyan]holdfast topics tail clicks -f[/]               and those that come, until Ctrl-C

  [cyan]holdfast topics tail clicks --from 15m -f[/]    of the last quarter of an hour

  [cyan]holdfast topics tail clicks -n 100 --json[/]
"""
# Records that `tail` keeps to show the last of them.
TAIL_RECORDS_MAX: Final = 100_000
_POLL_S: Final = 0.5


def produce(
    topic: TopicArgument,
    key_separator: Annotated[
        str, typer.Option(metavar="TEXT", help="What is before it in a line is the key.")
    ] = "",
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header of each record.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="This one; otherwise the key decides.")
    ] = None,
    address: AddressOption = "",
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write each line of stdin as a record. Ends when all are on the broker's disk."""
    headers = pairs(header, "--header")
    if sys.stdin.isatty():
        output.note("each line is a record; Ctrl-D ends")
    count = 0
    with open_topics(address, cluster, wants=True) as found:
        producer = found.topics.producer()
        try:
            for key, value in _lines(sys.stdin.buffer, key_separator.encode()):
                producer.send(topic, value, key=key, headers=headers, partition=partition)
                count += 1
            producer.close()  # raises what could not be written
        except KeyboardInterrupt:
            _give_up(producer, count)
            raise
    if as_json:
        output.show_json({"topic": topic, "records": count})
        return
    records = "1 record is" if count == 1 else f"{count} records are"
    output.done(f"{records} written to {topic}", f"holdfast topics tail {topic}")


def _give_up(producer: Producer, count: int) -> None:
    """Ctrl-C: what was sent has a moment to be written, and nobody waits any longer."""
    with suppress(HoldfastError):
        producer.flush(_INTERRUPTED_S)
    if left := producer.waiting:
        output.note(f"{left} of {count} records may not be written: no broker has said so")
    producer.abandon()


def _lines(lines: Iterable[bytes], separator: bytes) -> Iterator[tuple[bytes | None, bytes]]:
    """Key and value of each line."""
    for number, line in enumerate(lines, 1):
        value = line.rstrip(b"\r\n")
        if not separator:
            yield None, value
            continue
        key, found, rest = value.partition(separator)
        if not found:
            raise Usage(
                f"line {number} has no {separator.decode(errors='replace')!r} after its key",
                why="--key-separator is between key and value; the lines before it are written",
                fix="mend that line, or leave --key-separator out",
            )
        yield key, rest


def tail(
    topic: TopicArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with those that come, until Ctrl-C.")
    ] = False,
    count: Annotated[
        int, typer.Option("-n", min=0, max=TAIL_RECORDS_MAX, help="How many of the last.")
    ] = 10,
    start: Annotated[
        str,
        typer.Option("--from", help="earliest, a time, or how long ago (15m); in place of -n."),
    ] = "",
    raw: Annotated[bool, typer.Option("--raw", help="Values alone, as they are.")] = False,
    uncommitted: Annotated[
        bool, typer.Option(help="Also records of transactions that are open or aborted.")
    ] = False,
    address: AddressOption = "",
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the last records of a topic: time, partition and offset, key, and value.

    Values that are JSON are shown so. With [cyan]--json -f[/] each line is one JSON document.
    """
    from holdfast.topics import TopicPosition
    from holdfast.topics.heat import last_records

    with open_topics(address, cluster) as found:
        check_known(found.topics, topic)
        admin = found.topics.admin
        known = admin.describe(topic)
        if start:
            begin = admin.offsets(
                topic, "earliest" if start == "earliest" else time_ms(start, "--from")
            )
            known = type(known)(
                known.name,
                known.partitions,
                known.copies,
                offsets={part: (begin[part], known.offsets[part][1]) for part in begin},
            )
            count = TAIL_RECORDS_MAX
        last = last_records(found.topics, known, count, committed=not uncommitted) if count else []
        last.sort(key=lambda one: (one.at, one.partition, one.offset))
        show = _Shown(raw=raw, as_json=as_json, follow=follow)
        show.all(last[-count:] if count else [])
        if not follow:
            return
        ends = [TopicPosition(topic, part, after) for part, (_, after) in known.offsets.items()]
        _follow(found.topics, topic, ends, show, committed=not uncommitted)


def _follow(
    topics: Any, topic: str, ends: Sequence[TopicPosition], show: _Shown, *, committed: bool
) -> None:
    with topics.consumer(topic, start=ends, committed=committed) as consumer:
        while True:
            show.all(consumer.poll(_POLL_S))


class _Shown:
    """Shows records as they come."""

    def __init__(self, *, raw: bool, as_json: bool, follow: bool) -> None:
        self._raw = raw
        self._json = as_json
        self._follow = follow

    def all(self, records: Sequence[Record]) -> None:
        if self._json and not self._follow:
            output.show_json({"records": [fields(one) for one in records]})
            return
        for one in records:
            if self._json:
                sys.stdout.write(json.dumps(fields(one), ensure_ascii=False) + "\n")
            elif self._raw:
                sys.stdout.buffer.write((one.raw or b"") + b"\n")
            else:
                _show(one)
        sys.stdout.flush()


def _show(record: Record) -> None:
    head = Text()
    head.append(_time(record.at), style="dim")
    head.append(f"  {record.partition}:{record.offset}", style="cyan")
    if record.key is not None:
        head.append(f"  {readable(record.key)}", style="bold")
    for name, value in record.headers.items():
        head.append(f"  {name}={readable(value)}", style="dim")
    console = output.out()
    if record.raw is None:
        head.append("  (nothing: the key is deleted)", style="dim")
        console.print(head)
        return
    try:
        value = json.loads(record.raw)
    except ValueError:
        value = None
    if isinstance(value, dict | list):
        console.print(head)
        console.print_json(data=value, indent=2)
        return
    head.append(f"  {readable(record.raw)}")
    console.print(head)


def readable(data: bytes | None) -> str:
    """For people: text, or what it would be in Python."""
    if data is None:
        return ""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return repr(data)


def fields(record: Record) -> dict[str, Any]:
    """For JSON. A value that is JSON is one here; bytes that are no text are in base64."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "time": _time(record.at),
        "key": _plain(record.key),
        "value": _value(record.raw),
        "headers": {name: _plain(value) for name, value in record.headers.items()},
    }


def _value(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return json.loads(data)
    except ValueError:
        return _plain(data)


def _plain(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _time(at_ms: int) -> str:
    moment = datetime.datetime.fromtimestamp(at_ms / 1_000, datetime.UTC).astimezone()
    return moment.isoformat(timespec="milliseconds")
