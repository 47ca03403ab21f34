"""A script drawn from a seed: the same seed and time draw the same script. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, TypeVar

from tests.proofs.chaos.cast import CLIENT, WRITER, Cast
from tests.proofs.chaos.observed import job
from tests.proofs.chaos.script import Act, Chaos, all_, any_, leading

T = TypeVar("T")
# How often each kind of act comes, of 100 or so.
KILLS: Final = {
    "worker": 16,
    "replica": 12,
    "agent": 8,
    "machine": 5,
    "coordinator": 8,
    "server": 6,
    "controller": 4,
    "gateway": 4,
    "zygote": 2,
    "writer": 2,
    "envoy": 6,
    "store": 4,
}
PAUSES: Final = {
    "worker": 3,
    "replica": 3,
    "agent": 3,
    "coordinator": 3,
    "server": 1,
    "gateway": 1,
    "envoy": 2,
    "store": 2,
}
RESTARTS: Final = {"coordinator": 2, "agent": 2, "controller": 1}
LINKS: Final = {"cut": 16, "partition": 8, "slow": 8}
FILLS: Final = {"disk": 8}
PLANS: Final = {"rollout": 5, "rollback": 2}
# Some at once, some while the one before is being dealt with, some after a quiet time.
GAPS_S: Final = (((0.0, 0.1), 14), ((0.4, 2.0), 50), ((2.0, 6.0), 36))
# After so many acts all is left in peace for a while: what was broken must heal.
PEACE_EVERY: Final = 12
PEACE_S: Final = (6.0, 10.0)
AWAY_S: Final = ((0.0, 0.3), (0.5, 4.0))
# Hardly noticed, or longer than a session.
LASTS_S: Final = ((0.3, 1.5), (3.0, 9.0))
RATES: Final = ("128kbit", "512kbit", "2mbit")
ON_STEP_SHARE: Final = 0.12
# Now and then it strikes all of a kind: all workers, so that a training begins from a checkpoint.
ALL_SHARE: Final = 0.2
# An Envoy is often killed together with its gateway, as if their host had lost its power.
BOTH_SHARE: Final = 0.4
# So long a replica or a gateway that was struck may take to be back. Until then others are spared,
# but for this share of such acts.
BACK_S: Final = 8.0
ALL_AWAY_SHARE: Final = 0.1
FIRST_S: Final = 1.0


def draw(seed: int, seconds: float, cast: Cast, *, links: bool, disks: bool) -> Chaos:
    """Faults for so many seconds. `links`: whether any link can be cut and slowed, or only those
    to the coordination plane. `disks`: whether disks can be filled."""
    return _Drawing(seed, seconds, cast, links, disks).chaos


class _Drawing:
    def __init__(self, seed: int, seconds: float, cast: Cast, links: bool, disks: bool) -> None:
        self.chance = random.Random(seed)
        self.cast, self.links, self.disks = cast, links, disks
        self.chaos = Chaos()
        self._spared_s = {self._costs_replicas: 0.0, self._costs_a_gateway: 0.0}
        at_s, count = FIRST_S, 0
        while at_s < seconds:
            act = self._act_at(int(at_s * 10) / 10)
            if act.verb in ("kill", "pause") and self.chance.random() < ON_STEP_SHARE:
                act.when(job.step > self.chance.randint(5, 60))
            count += 1
            (gap_s,) = self._weighted([gap for gap, _ in GAPS_S], [share for _, share in GAPS_S])
            at_s += self.chance.uniform(*gap_s)
            if count % PEACE_EVERY == 0:
                at_s += self.chance.uniform(*PEACE_S)

    def _act_at(self, at_s: float) -> Act:
        """Mostly one that leaves the service somebody who can answer: what is promised of requests
        says nothing while nobody is there."""
        act = self._act().at(at_s)
        while any(costs(act) and at_s < until_s for costs, until_s in self._spared_s.items()):
            if self.chance.random() < ALL_AWAY_SHARE:
                break
            self.chaos.acts.pop()
            act = self._act().at(at_s)
        for costs in self._spared_s:
            if costs(act):
                self._spared_s[costs] = at_s + act.lasts_s + BACK_S
        if act.verb == "kill" and act.kind == "envoy" and self.chance.random() < BOTH_SHARE:
            # The gateway first: it would have another one at once.
            self.chaos.acts.remove(act)
            self.chaos.kill(gateway=act.who).for_(act.lasts_s).at(at_s)
            self.chaos.acts.append(act)
        return act

    def _costs_replicas(self, act: Act) -> bool:
        """Whether a gateway may lose sight of a replica by it."""
        if act.kind in ("replica", "machine"):
            return True
        if act.verb == "slow":
            return act.sides[0][0] in self.cast.machines
        sides = [set(side) for side in act.sides]
        machines, gateways = set(self.cast.machines), set(self.cast.gateways)
        return any(
            one is not other and one & machines and other & gateways
            for one in sides
            for other in sides
        )

    def _costs_a_gateway(self, act: Act) -> bool:
        """Whether the client may lose one by it."""
        return act.kind == "envoy" or any(CLIENT in side for side in act.sides)

    def _act(self) -> Act:
        makers: list[tuple[Callable[[str], Act], dict[str, int]]] = [
            (self._kill, KILLS),
            (self._pause, PAUSES),
            (self._restart, RESTARTS),
            (self._link, LINKS),
            (self._plan, PLANS),
            (self._fill, FILLS if self.disks else {}),
        ]
        if not self.cast.store:
            makers = [
                (make, {kind: share for kind, share in shares.items() if kind != "store"})
                for make, shares in makers
            ]
        (chosen,) = self._weighted(makers, [sum(weights.values()) for _, weights in makers])
        make, weights = chosen
        (kind,) = self._weighted(list(weights), list(weights.values()))
        return make(kind)

    def _kill(self, kind: str) -> Act:
        return self._whom(self.chaos.kill, kind).for_(self._length(AWAY_S))

    def _pause(self, kind: str) -> Act:
        return self._whom(self.chaos.pause, kind).for_(self._length(LASTS_S))

    def _restart(self, kind: str) -> Act:
        return self._whom(self.chaos.restart, kind)

    def _whom(self, verb: Callable[..., Act], kind: str) -> Act:
        numbered = {
            "server": len(self.cast.servers),
            "coordinator": len(self.cast.coordinators),
            "controller": len(self.cast.coordinators),
            "agent": len(self.cast.machines),
            "machine": len(self.cast.machines),
            "zygote": len(self.cast.machines),
            "gateway": len(self.cast.gateways),
            "envoy": len(self.cast.gateways),
            "store": 1,
        }
        if kind == "coordinator" and self.chance.random() < 0.6:
            return verb(coordinator=leading)
        if kind in ("worker", "coordinator", "server") and self.chance.random() < ALL_SHARE:
            return verb(**{kind: all_})
        if kind in numbered:
            return verb(**{kind: self.chance.randint(1, numbered[kind])})
        return verb(**{kind: any_}).picking(round(self.chance.random(), 2))

    def _link(self, kind: str) -> Act:
        lasts_s = self._length(LASTS_S)
        if not self.links:
            # Each host reaches the plane by a relay of its own: that is what can be cut here.
            others = [
                host
                for host in self.cast.struck
                if host not in self.cast.servers and host != self.cast.store
            ]
            one, way = self.chance.choice(others), self.chance.random() < 0.3
            return self.chaos.cut(one, self.cast.servers[0], one_way=way).for_(lasts_s)
        if kind == "slow":
            slowed = [host for host in self.cast.struck if host not in self.cast.gateways]
            host, rate = self.chance.choice(slowed), self.chance.choice(RATES)
            return self.chaos.slow(host, rate).for_(round(lasts_s + 3.0, 1))
        if kind == "cut":
            one, other = self._pair()
            return self.chaos.cut(one, other, one_way=self.chance.random() < 0.4).for_(lasts_s)
        return self.chaos.partition(*self._sides()).for_(lasts_s)

    def _pair(self) -> tuple[str, str]:
        """Two hosts that have something to say to each other."""
        cast = self.cast
        machine, gateway = self.chance.choice(cast.machines), self.chance.choice(cast.gateways)
        pairs = [
            (machine, self.chance.choice([one for one in cast.machines if one != machine])),
            (machine, self.chance.choice(cast.coordinators)),
            (machine, self.chance.choice(cast.servers)),
            (gateway, machine),
            (gateway, self.chance.choice(cast.servers)),
            (gateway, CLIENT),
            (self.chance.choice(cast.coordinators), self.chance.choice(cast.servers)),
            (WRITER, self.chance.choice(cast.servers)),
        ]
        if cast.store:
            pairs += [(machine, cast.store), (self.chance.choice(cast.coordinators), cast.store)]
        if len(cast.servers) > 1:
            one, other = self.chance.sample(cast.servers, 2)
            pairs.append((one, other))
        one, other = self.chance.choice(pairs)
        return (one, other) if self.chance.random() < 0.5 else (other, one)

    def _sides(self) -> tuple[list[str], list[str]]:
        """A minority on one side: one or two hosts; everybody else on the other."""
        away = self.chance.sample(
            [host for host in self.cast.struck if host != WRITER], self.chance.randint(1, 2)
        )
        return away, [host for host in self.cast.struck if host not in away]

    def _fill(self, _kind: str) -> Act:
        return self.chaos.fill(self.chance.choice(self.cast.disks)).for_(self._length(LASTS_S))

    def _plan(self, kind: str) -> Act:
        if kind == "rollback":
            return self.chaos.rollback()
        (trouble,) = self._weighted(["", "unloadable", "worse"], [4, 1, 1])
        return self.chaos.rollout(trouble)

    def _length(self, choices: tuple[tuple[float, float], ...]) -> float:
        return round(self.chance.uniform(*self.chance.choice(choices)), 1)

    def _weighted(self, those: list[T], weights: list[int]) -> list[T]:
        return self.chance.choices(those, weights)
