"""A teller of events as a process that a test can kill: PLANE KAFKA NAME."""

from __future__ import annotations

import sys
import threading

from holdfast.coordination import connect
from holdfast.events.telling import EventTeller
from holdfast.system import logs
from holdfast.topics import connect as connect_topics


def main(plane: str, kafka: str, name: str) -> None:
    logs.set_up()
    with connect(plane) as session:
        EventTeller(session, lambda: connect_topics(kafka), name).run(threading.Event())


if __name__ == "__main__":
    main(*sys.argv[1:])
