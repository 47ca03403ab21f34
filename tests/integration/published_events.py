"""A plane whose events are published, and all that was published."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from holdfast import topics
from holdfast.control.store.plane import ControlPlane
from holdfast.coordination import connect
from holdfast.events.records import EVENTS_TOPIC, JOB, Event, decode
from tests.contract.leading import SPEC, Leading
from tests.contract.planes import EmbeddedPlane
from tests.integration import event_teller
from tests.waiting import eventually


class PublishedEvents:
    """A plane with a leader and a user, publishers of its events, and what they have published."""

    def __init__(self, folder: Path, hosts: str) -> None:
        self.hosts = hosts
        self._plane = EmbeddedPlane(folder / "plane")
        self._stack = ExitStack()
        self._stack.callback(self._plane.end)
        self._cluster = self._stack.enter_context(topics.connect(f"kafka://{hosts}"))
        self._reading: dict[str, tuple[topics.Consumer, list[bytes]]] = {}
        self._tellers: list[subprocess.Popen[bytes]] = []
        self._stack.callback(self._end_tellers)
        self.session = self._stack.enter_context(connect(self._plane.address()))
        self.control = ControlPlane(self.session)
        self.control.submit(SPEC)
        self.leading = Leading(self.session)

    def __enter__(self) -> PublishedEvents:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def start_teller(self) -> subprocess.Popen[bytes]:
        words = (self._plane.address(), f"kafka://{self.hosts}", f"t{len(self._tellers)}")
        teller = subprocess.Popen([sys.executable, "-m", event_teller.__name__, *words])
        self._tellers.append(teller)
        return teller

    def decide(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            self.leading.ledger.note_trouble("train", f"trouble {number}")

    def values(self, topic: str = EVENTS_TOPIC) -> list[bytes]:
        """All that has come of the topic by now."""
        if topic not in self._reading:
            self._cluster.admin.ensure(topic)
            self._reading[topic] = self._cluster.consumer(topic, start="earliest"), []
        consumer, values = self._reading[topic]
        while records := consumer.poll(0.3):
            values += [record.value for record in records]
        return values

    def events(self) -> list[Event]:
        return [decode(value) for value in self.values()]

    def wait_for(self, reason: str) -> list[Event]:
        def there() -> list[Event]:
            found = self.events()
            return found if any(reason in event.reason for event in found) else []

        return eventually(there, f"{reason} is told", pause_s=0.3)

    def check(self, events: list[Event]) -> list[Event]:
        """Nothing is missing, doubles have one id, and all is in order; each once."""
        once: dict[str, Event] = {}
        for event in events:
            assert once.setdefault(event.id, event) == event, "one id, two events"
        first = list(once.values())
        assert [event.zxid for event in first] == sorted(event.zxid for event in first)
        wanted = [entry.reason for entry in self.control.history("train")]
        found = [event.reason for event in first if event.of == JOB]
        assert sorted(found) == sorted(wanted), "an event is missing, or has two ids"
        numbers = [event.number for event in first if event.what == "Trouble"]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        return first

    def _end_tellers(self) -> None:
        for teller in self._tellers:
            teller.kill()
            teller.wait()
