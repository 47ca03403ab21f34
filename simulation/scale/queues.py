"""What waits: seeded simulations of the leader's reports and of requests at replicas. Pure."""

from __future__ import annotations

import heapq
import random
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Waits:
    """Times in seconds, and how many were done a second."""

    p50_s: float
    p99_s: float
    per_s: float


@dataclass(frozen=True, slots=True)
class Reporting:
    """Agents that report every `pause_s`; a leader that takes a report in `report_s` and looks at
    everything in `tick_s`, then rests for `gap_s`. `window`: reports of one agent that may be on
    their way; with more its next one waits, and is a newer one by then."""

    agents: int
    pause_s: float
    report_s: float
    tick_s: float
    gap_s: float
    window: int


def report_ages(world: Reporting, seconds: float, seed: int) -> Waits:
    """How old a report is when the leader has taken it. Reports and ticks share one core: while
    both have something to do, each gets half of it. The first fifth warms up."""
    chance = random.Random(seed)  # noqa: S311  of a simulation
    due = [(chance.random() * world.pause_s, agent) for agent in range(world.agents)]
    heapq.heapify(due)
    line: deque[tuple[float, int]] = deque()
    waiting = [0] * world.agents
    blocked: set[int] = set()
    now_s, tick_left_s, rest_until_s = 0.0, world.tick_s, 0.0
    ages: list[float] = []
    while now_s < seconds:
        while due and due[0][0] <= now_s:
            at_s, agent = heapq.heappop(due)
            if waiting[agent] >= world.window:
                blocked.add(agent)
                continue
            waiting[agent] += 1
            line.append((at_s, agent))
            again_s = world.pause_s * chance.uniform(0.95, 1.05)
            heapq.heappush(due, (at_s + again_s, agent))
        ticking = tick_left_s > 0 and now_s >= rest_until_s
        if line:
            at_s, agent = line.popleft()
            took_s = world.report_s * (2 if ticking else 1)
            now_s += took_s
            if ticking:
                tick_left_s -= took_s / 2
            waiting[agent] -= 1
            if agent in blocked:
                blocked.discard(agent)
                heapq.heappush(due, (now_s, agent))
            if now_s > seconds / 5:
                ages.append(now_s - at_s)
        elif ticking:
            until_s = min(now_s + tick_left_s, due[0][0] if due else seconds)
            tick_left_s -= max(until_s - now_s, 1e-9)
            now_s = max(until_s, now_s + 1e-9)
        else:
            now_s = max(min(rest_until_s, due[0][0] if due else seconds), now_s + 1e-9)
        if tick_left_s <= 0:
            tick_left_s, rest_until_s = world.tick_s, now_s + world.gap_s
    return _waits(ages, 0.8 * seconds)


@dataclass(frozen=True, slots=True)
class Serving:
    """Requests that come by chance, `rate` a second, to `gateways`; each draws two replicas and
    takes the one to which fewer of its own requests are on their way. A replica computes one
    request after the other, each in about `service_s`."""

    rate: float
    gateways: int
    replicas: int
    service_s: float


def request_waits(world: Serving, requests: int, seed: int) -> Waits:
    """From a request's arrival to its answer, at the replica: waiting and computing. The first
    fifth warms up."""
    chance = random.Random(seed)  # noqa: S311  of a simulation
    mine = [[0] * world.replicas for _ in range(world.gateways)]
    free_s = [0.0] * world.replicas
    ends: list[tuple[float, int, int]] = []
    now_s, took = 0.0, []
    for number in range(requests):
        now_s += chance.expovariate(world.rate)
        while ends and ends[0][0] <= now_s:
            _, gateway, replica = heapq.heappop(ends)
            mine[gateway][replica] -= 1
        gateway = chance.randrange(world.gateways)
        one, other = chance.randrange(world.replicas), chance.randrange(world.replicas)
        replica = one if mine[gateway][one] <= mine[gateway][other] else other
        begin_s = max(now_s, free_s[replica])
        free_s[replica] = begin_s + world.service_s * chance.uniform(0.8, 1.2)
        mine[gateway][replica] += 1
        heapq.heappush(ends, (free_s[replica], gateway, replica))
        if number >= requests // 5:
            took.append(free_s[replica] - now_s)
    return _waits(took, now_s * 0.8)


def _waits(found: list[float], seconds: float) -> Waits:
    found.sort()
    if not found:
        return Waits(float("inf"), float("inf"), 0.0)
    return Waits(
        found[len(found) // 2], found[int(len(found) * 0.99)], len(found) / max(seconds, 1e-9)
    )
