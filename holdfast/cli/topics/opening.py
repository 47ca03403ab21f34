"""From a command's words to the topics that it is about."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from holdfast.cli.options import missing, opened
from holdfast.wire.errors import Missing, Usage
from holdfast.wire.worker_messages import TOPICS_VARIABLE

if TYPE_CHECKING:
    from holdfast.topics import Connection

AddressOption = Annotated[
    str,
    typer.Option(
        "--address",
        "-a",
        metavar="kafka://…",
        help="Which brokers; otherwise those of the cluster.",
        envvar=TOPICS_VARIABLE,
    ),
]
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]

_AGO: Final = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)")
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


@dataclass(frozen=True)
class OpenTopics:
    """A connection. `own`: to the cluster's own broker, which is one."""

    topics: Connection
    own: bool = False


@contextmanager
def open_topics(address: str, cluster: Path | None, *, wants: bool = False) -> Iterator[OpenTopics]:
    """Connect to the address given, else to the cluster's topics. `wants`: if nothing uses topics
    there yet, this does; otherwise `Missing`."""
    from holdfast.cluster import topics as of_cluster
    from holdfast.topics import TopicsAddress, connect

    if address:
        text = address if "://" in address else f"kafka://{address}"
        with connect(TopicsAddress.parse(text)) as topics:
            yield OpenTopics(topics)
        return
    with opened(cluster) as found:
        record = of_cluster.wanted(found.session) if wants else of_cluster.record(found.session)
        if record is None or not record.address:
            raise Missing(
                f"nothing uses topics in the cluster {found.cluster.name}",
                why="its broker is started when something does",
                fix="holdfast topics create NAME, or name other brokers: --address kafka://…",
            )
        where = of_cluster.address(found.cluster, record)
    with connect(where) as topics:
        yield OpenTopics(topics, own=record.embedded)


def check_known(topics: Connection, topic: str) -> None:
    """`Missing`, with the nearest one, if there is no such topic. Asking for it by its name would
    make it, where a broker makes topics that are asked for."""
    known = topics.admin.list_topics()
    if topic not in known:
        raise missing("topic", topic, known, "holdfast topics list")


def time_ms(text: str, option: str) -> int:
    """A time, or how long ago, in milliseconds since 1970."""
    ago = _AGO.fullmatch(text)
    now = datetime.datetime.now(datetime.UTC)
    if ago is not None:
        then = now - datetime.timedelta(seconds=float(ago[1]) * _SECONDS[ago[2]])
        return int(then.timestamp() * 1_000)
    try:
        return int(datetime.datetime.fromisoformat(text).astimezone().timestamp() * 1_000)
    except ValueError as error:
        raise Usage(
            f"{option} {text} is no place in a topic",
            why="it is earliest, latest, a time (2026-01-31T12:00), or how long ago (15m, 2h, 1d)",
            fix=f"{option} earliest",
        ) from error


def pairs(given: list[str] | None, option: str) -> dict[str, str]:
    """What `NAME=VALUE` says."""
    found = {}
    for each in given or ():
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise Usage(f"{option} {each} is not NAME=VALUE", fix=f"{option} retention.ms=3600000")
        found[name] = value
    return found
