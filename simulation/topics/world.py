"""A world with one broker: writers, transactions and a chain of copies under faults, then peace.

At the end everything that was committed must have been copied, and the checker that judges real
brokers judges this history, too.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Final

from simulation.kernel import Kernel, Violation
from simulation.topics.broker import TOPICS, SimulatedBroker
from simulation.topics.checker import check
from simulation.topics.clients import (
    Chain,
    SimulatedClient,
    Transactor,
    Writer,
    read_committed,
)
from simulation.topics.faults import TopicFaults
from simulation.topics.history import History, Place
from simulation.verdict import NO_FAULTS_OFF, Kind, Verdict, verdict_of, with_story

STORM_S: Final = 30.0
# After the storm everything that was committed is copied within this.
PEACE_S: Final = 120.0
LOOK_S: Final = 5.0


class World:
    """One seed."""

    def __init__(self, seed: int, off: frozenset[str], *, traced: bool) -> None:
        self.seed = seed
        self.kernel = Kernel(seed, traced=traced)
        self.faults = TopicFaults(seed, STORM_S, off)
        self.history = History(copied={"input": "output"})
        self.happened: Counter[str] = Counter()
        self.broker = SimulatedBroker(self.kernel, self.faults)
        self.writers: list[SimulatedClient] = [
            *(self._client(Writer, number) for number in range(self.kernel.random.randint(1, 2))),
            self._client(Transactor, 0),
        ]
        self.chains: list[SimulatedClient] = [
            self._client(Chain, number) for number in range(self.kernel.random.randint(1, 3))
        ]

    def _client(self, kind: type[SimulatedClient], number: int) -> SimulatedClient:
        name = f"{kind.__name__.lower()}-{number}"
        return kind(self.kernel, name, self.broker, self.faults, self.history, self.seed)

    def run(self) -> Verdict:
        try:
            self._play()
        except Violation as broken:
            return self._verdict((broken.rule, broken.what))
        return self._verdict(("", ""))

    def _verdict(self, broken: tuple[str, str]) -> Verdict:
        self.happened.update(fate.value for fate in self.history.fates.values())
        self.happened["restarts"] = self.broker.restarts
        return verdict_of(self.seed, self.kernel, self.faults, self.happened, broken)

    def _play(self) -> None:
        for client in [*self.writers, *self.chains]:
            self.kernel.after(self.kernel.between(0.0, 1.0), client.start)
        for fault in self.faults.planned:
            self.kernel.after(fault.at_s, partial(self._strike, fault.kind))
        self._until(STORM_S)
        self.faults.quiet = True
        for client in self.writers:
            client.stopping = True
        while not (all(one.done for one in self.writers) and self._is_copied()):
            if self.kernel.now_s > STORM_S + PEACE_S:
                self._judge()
                raise Violation("stuck", f"not everything is copied after {PEACE_S:g} s of peace")
            self._until(self.kernel.now_s + LOOK_S)
        self._judge()

    def _until(self, time_s: float) -> None:
        while self.kernel.now_s < time_s and self.kernel.step():
            pass

    def _strike(self, kind: str) -> None:
        chance = self.faults.random
        if not self.faults.happens(kind):
            return
        self.kernel.tell("fault", kind)
        if kind == "crash broker" and self.broker.up:
            self.broker.crash()
        elif kind == "pause broker" and self.broker.up:
            self.broker.stop()
            self.kernel.after(chance.uniform(0.5, 8.0), self.broker.go_on)
        elif kind == "jump clock":
            self.broker.skew_ms += int(chance.uniform(-3_600_000, 3_600_000))
        elif kind == "crash client":
            chance.choice([*self.writers, *self.chains]).crash()
        elif kind == "zombie":
            self._raise_zombie(chance.choice([self.writers[-1], *self.chains]))

    def _raise_zombie(self, client: SimulatedClient) -> None:
        """It stops; another one with its name takes its place; then it goes on."""
        if not client.up or client.stopped:
            return
        client.stop()
        crowd = self.writers if client in self.writers else self.chains
        other = type(client)(
            self.kernel, client.name, self.broker, self.faults, self.history, self.seed
        )
        other.numbers = client.numbers + 10_000
        other.life = client.life + 1_000
        crowd[crowd.index(client)] = other
        self.kernel.after(self.faults.random.uniform(0.1, 3.0), other.start)

        def wake() -> None:
            client.stopping = True
            client.go_on()

        self.kernel.after(self.faults.random.uniform(1.0, 15.0), wake)
        # A zombie that was fenced does not begin anew.
        client.start = lambda: None  # type: ignore[method-assign]

    # --- the end ------------------------------------------------------------------------------

    def _final(self) -> dict[Place, list[tuple[int, str]]]:
        final = {}
        for topic, count in TOPICS.items():
            for number in range(count):
                place, offset = Place(topic, number), 0
                records: list[tuple[int, str]] = []
                while True:
                    fetched = self.broker.read(place, offset)
                    found, end = read_committed(fetched, offset)
                    records += found
                    if end == offset:
                        break
                    offset = end
                final[place] = records
        return final

    def _is_copied(self) -> bool:
        if not self.broker.up:
            return False
        sources = {one.value: one.source for one in self.history.sent}
        final = self._final()
        made = {
            sources.get(value, "")
            for place, records in final.items()
            if place.topic == "output"
            for _, value in records
        }
        wanted = {
            value
            for place, records in final.items()
            if place.topic == "input"
            for _, value in records
        }
        return wanted <= made

    def _judge(self) -> None:
        if not self.broker.up:
            return
        self.history.final = self._final()
        for broken in check(self.history):
            raise Violation(*broken)


def run(
    seed: int,
    off: frozenset[str] = NO_FAULTS_OFF,
    *,
    traced: bool = False,
    own_checks: bool = True,
) -> Verdict:
    """Run a seed. The core has no checks of its own that could be switched off."""
    del own_checks
    return with_story(lambda traced: World(seed, off, traced=traced).run(), traced)


TOPICS_WORLD: Final = Kind("simulation.topics", run)
