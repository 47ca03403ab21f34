"""The load, the troubles, and what must be true at the end."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.serving.replies import Shot
from bench.serving.steady import Result, Steady
from tests.proofs.patience import patiently
from tests.proofs.serving.cluster import SERVICE, TIMEOUT_S, ServiceCluster, Violation
from tests.proofs.serving.models import BODY, MODEL, right

REPLICAS: Final = 3
QUIET_S: Final = 0.5
LOOK_S: Final = 0.1
# A gateway hears of a new replica in milliseconds, and its Envoy asks for its health first. On a
# machine that is busy with all of this that takes longer.
HEARD_S: Final = 5.0
# Processes of the control side, each of which is killed with nobody to help.
KINDS: Final = ("coordinator", "server", "controller", "gateway", "agent", "supervisor")
# Envoy's own death: its gateway starts the next one, which takes half a second on an idle machine.
ENVOY_AWAY_S: Final = 5.0


@dataclass(frozen=True)
class Plan:
    """How much of everything. The same seed gives the same order of troubles."""

    seed: int
    requests: int = 200_000
    rate: float = 500.0
    rollouts: int = 20
    rollbacks: int = 5
    kill_every_s: float = 2.0
    kinds: tuple[str, ...] = KINDS  # all of them: also several at once, and Envoy

    def command(self) -> str:
        return (
            f"python -m tests.proofs.serving --seed {self.seed} --requests {self.requests}"
            f" --rate {self.rate:g} --rollouts {self.rollouts} --rollbacks {self.rollbacks}"
        )


@dataclass
class Campaign:
    """One run."""

    plan: Plan
    folder: Path
    say: Callable[[str], None]
    tally: Counter[str] = field(default_factory=Counter)
    total: Result = field(default_factory=Result)
    cost: int = 0  # requests that were lost because Envoy itself was killed

    def run(self) -> None:
        chance = random.Random(self.plan.seed)
        with ServiceCluster(self.folder, REPLICAS) as served:
            shots = [
                Shot(f"/predict/{SERVICE}", BODY, {"x-user": f"user-{number}"})
                for number in range(64)
            ]
            with Steady(served.address, shots, self.plan.rate, right, timeout_s=TIMEOUT_S) as load:
                began_s = time.monotonic()
                stop = threading.Event()
                killer = threading.Thread(target=self._kill, args=(served, stop), daemon=True)
                killer.start()
                try:
                    for trouble in self._troubles(chance):
                        self.say(f"{time.monotonic() - began_s:6.1f} s  {trouble}")
                        self._play(trouble, served, load)
                    end_s = began_s + self.plan.requests / self.plan.rate
                    stop.wait(max(0.0, end_s - time.monotonic()))
                finally:
                    stop.set()
                    killer.join()
                self.total = load.stop()  # of the whole run, cuts included
        self._judge()

    def _troubles(self, chance: random.Random) -> list[str]:
        """In a random order; a rollback needs a rollout before it."""
        troubles = ["roll out"] * (self.plan.rollouts - 1)
        troubles += ["a version that cannot be loaded", "a version that is worse"]
        troubles += [f"kill the {kind}" for kind in self.plan.kinds]
        if self.plan.kinds == KINDS:
            troubles += ["kill several at once", "kill Envoy"]
        chance.shuffle(troubles)
        troubles.insert(0, "roll out")
        for _ in range(self.plan.rollbacks):
            places = [at + 1 for at, what in enumerate(troubles) if what == "roll out"]
            free = [at for at in places if at == len(troubles) or troubles[at] != "roll back"]
            troubles.insert(chance.choice(free), "roll back")
        return troubles

    def _play(self, trouble: str, served: ServiceCluster, load: Steady) -> None:
        services, publisher = served.services, served.publisher
        self.tally[trouble] += 1
        stable = served.plan().stable
        assert stable is not None
        if trouble == "roll out":
            stable = publisher.publish()
            patiently(lambda: services.rollout(SERVICE, str(stable)))
        elif trouble == "roll back":
            before = served.plan().previous
            assert before is not None, "there is a version before"
            patiently(lambda: services.rollback(SERVICE))
            stable = before
        elif trouble.startswith("a version"):
            bad = publisher.publish("worse" if trouble.endswith("worse") else "unloadable")
            patiently(lambda: services.rollout(SERVICE, str(bad)))
            served.await_failed(bad)
        elif trouble == "kill Envoy":
            self._kill_envoy(served, load)
        else:
            # Nobody helps: the supervisor, and those whom it keeps, bring it back.
            several = self._several() if trouble == "kill several at once" else ()
            served.kill(*(several or [trouble.rpartition(" ")[2]]))
            took_s = served.await_back()
            self.say(f"          all of it is back after {took_s:.2f} s")
        took_s = served.await_version(stable)
        self.say(f"          version {stable} alone is served after {took_s:.2f} s")
        self._only(stable, load)

    def _several(self) -> tuple[str, ...]:
        """All but one, by chance: of those who are kept somebody is left who starts the rest."""
        spared = random.Random(self.plan.seed + 2).choice([one for one in KINDS if one != "server"])
        return tuple(kind for kind in KINDS if kind != spared)

    def _kill_envoy(self, served: ServiceCluster, load: Steady) -> None:
        """Its clients lose their connections; everything else must go on. What that costs is
        counted apart, and bounded."""
        self._merge(load.cut())
        served.kill("envoy")
        served.await_back()
        lost, quiet = 0, 0
        until_s = time.monotonic() + TIMEOUT_S
        while quiet < 2:
            time.sleep(QUIET_S)  # pause: what is looked at is what happens in this time
            part = load.cut()
            strange = [why for why in part.reasons if not why.startswith("connection: ")]
            if strange or time.monotonic() > until_s:
                raise Violation(f"Envoy's death has cost more than connections: {part.reasons}")
            lost += part.failed
            quiet = 0 if part.failed else quiet + 1
            self.total.merge(part)
        self.cost += lost
        self.tally["requests lost with Envoy"] += lost
        away_s = lost / self.plan.rate
        self.say(f"          {lost} requests were lost with Envoy: {away_s:.2f} s of them")
        if lost > self.plan.rate * ENVOY_AWAY_S:
            raise Violation(f"Envoy's death has cost {lost} requests")

    def _only(self, version: int, load: Steady) -> None:
        """From now on nobody else answers: twice in a row not, as soon as the requests are answered
        that were under way when gateways had taken the new plan."""
        until_s = time.monotonic() + TIMEOUT_S
        quiet = 0
        while quiet < 2:
            time.sleep(QUIET_S)  # pause: what is looked at is what happens in this time
            part = load.cut()
            self._merge(part)
            others = {name: n for name, n in part.by_version.items() if name != str(version)}
            quiet = 0 if others else quiet + 1
            if others and time.monotonic() > until_s:
                raise Violation(f"version {version} alone was asked for; these answered: {others}")

    def _merge(self, part: Result) -> None:
        self.total.merge(part)
        if part.failed:
            raise Violation(f"{part.failed} requests failed: {dict(part.reasons)}")

    def _kill(self, served: ServiceCluster, stop: threading.Event) -> None:
        """A replica every so often, while another one can answer that a gateway has heard of."""
        chance = random.Random(self.plan.seed + 1)
        heard_s: dict[int, float] = {}  # since when a replica could be heard of
        due_s = time.monotonic() + self.plan.kill_every_s
        while not stop.wait(LOOK_S):
            living, now_s = served.living(), time.monotonic()
            if not served.gateway_lives():
                heard_s = {}  # it hears of everybody anew
            heard_s = {worker: heard_s.get(worker, now_s) for worker in living}
            if now_s < due_s:
                continue
            due_s = now_s + self.plan.kill_every_s
            known = [worker for worker, at_s in heard_s.items() if at_s <= now_s - HEARD_S]
            if len(known) > 1:
                os.kill(living[chance.choice(known)], signal.SIGKILL)
                self.tally["replicas killed"] += 1
            else:
                self.tally["replicas spared: no other was known to be ready"] += 1

    def _judge(self) -> None:
        if self.total.failed != self.cost:
            reasons = dict(self.total.reasons)
            raise Violation(f"{self.total.failed - self.cost} more requests failed: {reasons}")
        if self.total.sent < self.plan.requests * 0.98:
            raise Violation(f"only {self.total.sent} of {self.plan.requests} requests were sent")

    def table(self) -> str:
        total = self.total
        lines = [
            f"{total.sent:,} requests to {MODEL}, {total.failed - self.cost} failed"
            f" ({self.cost} more with Envoy itself), {len(total.versions)} versions answered",
            ", ".join(f"p{part:g} {total.p_ms(part):.1f} ms" for part in (50, 99, 99.9)),
        ]
        lines += [f"  {what}: {count}" for what, count in sorted(self.tally.items())]
        return "\n".join(lines)
