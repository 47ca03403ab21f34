"""What a seed decides before anything happens: versions and their natures, users, where things are.

Times are short: a step is watched for less than a second, a version is loaded in half of one. What
the code has as fixed times (graces, health checks, patience) is as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from random import Random
from typing import Final

from holdfast.serve.gateway.state import Front
from holdfast.serve.records import Limits, RolloutPolicy, ServiceSpec
from simulation.sources import source

NAME: Final = "s"
HOME, ABROAD = "eu", "us"
REGIONS: Final = (("",), (HOME,), (HOME,), (HOME,), (HOME, ABROAD), (HOME, ABROAD))
GATEWAYS: Final = (1, 1, 1, 1, 2, 2, 3)
STORM_S: Final = (2.5, 6.5)
POLICY: Final = RolloutPolicy(hold_s=0.4, ready_s=3.0, requests_min=20)
STEPS: Final = ((500, 2_500, 5_000), (2_500,), (500, 5_000))
TIMEOUT_S: Final = 0.6
# A process's wall clock is wrong by so much.
CLOCKS_S: Final = (0.0, 0.0, 0.3, -0.3, 6.0, 6.0, -6.0)


class Nature(Enum):
    """What a version is like."""

    GOOD = "good"
    UNLOADABLE = "unloadable"  # no replica can load it
    PICKY = "picky"  # one machine cannot load it
    ERRING = "erring"  # it loads, and fails on many requests
    SLOW = "slow"
    NONFINITE = "nonfinite"  # it loads, and answers NaN to many requests
    CRASHING = "crashing"  # a request of it ends the process
    FATAL = "fatal"  # loading it ends the process


# Those that must never serve everything by a rollout of their own.
BAD: Final = frozenset(
    {
        Nature.UNLOADABLE,
        Nature.ERRING,
        Nature.SLOW,
        Nature.NONFINITE,
        Nature.CRASHING,
        Nature.FATAL,
    }
)
# Where some replicas have a version and others never will, weights are hardest to get right.
NATURES: Final = (*Nature, *(4 * (Nature.PICKY,)), Nature.CRASHING, Nature.NONFINITE)
ACTS: Final = (
    "target",
    "target",
    "target",
    "target",
    "target",
    "pin",
    "rollout",
    "split",
    "split",
    "split",
    "retire",
    "scale",
    "scale",
    "scale",
    "nothing",
)


@dataclass(frozen=True, slots=True)
class UserAction:
    """What a user does, and when within its storm."""

    at_s: float
    what: str
    versions: tuple[int, ...]
    number: int


@dataclass(frozen=True, slots=True)
class Storm:
    """A time in which users act and things go wrong. Peace follows, until all is settled."""

    length_s: float
    acts: tuple[UserAction, ...]


@dataclass(frozen=True, slots=True)
class WorldSettings:
    """A world before it begins."""

    service: ServiceSpec
    natures: dict[int, Nature]
    fronts: tuple[Front, ...]  # one for each gateway
    regions: tuple[str, ...]  # replicas stand in them by turns; "": nobody names one
    clocks_s: tuple[float, ...]  # one for each controller: by how much it is wrong
    session_s: float  # how long nobody knows of a death
    read_s: float  # the longest from a write until others have read it
    apply_s: float  # the longest that Envoy takes for a file
    calm_s: float  # before the first storm
    storms: tuple[Storm, ...]


def draw(seed: int, off: frozenset[str]) -> WorldSettings:
    """What this seed decides. `off`: with "acts" in it, users do nothing."""
    random = source(f"{seed}/serving")
    count = random.randint(3, 6)
    natures = {1: Nature.GOOD}
    for version in range(2, count + 1):
        natures[version] = Nature.GOOD if random.random() < 0.35 else random.choice(NATURES)
    least = random.choice((1, 2, 2, 3))
    service = ServiceSpec(
        NAME,
        NAME,
        "prod",
        replicas_min=least,
        replicas_max=least + random.choice((0, 0, 2)),
        policy=replace(POLICY, steps=random.choice(STEPS)),
        limits=Limits(timeout_s=TIMEOUT_S),
        created_s=0.0,
    )
    regions = random.choice(REGIONS)
    fronts = tuple(_front(random.choice(regions)) for _ in range(random.choice(GATEWAYS)))
    clocks_s = tuple(random.choice(CLOCKS_S) for _ in range(random.randint(1, 2)))
    session_s = random.choice((0.5, 1.0, 2.0))
    read_s = random.choice((0.02, 0.05, 0.2))
    apply_s = random.choice((0.01, 0.05, 0.5))
    calm_s = random.choice((0.0, 1.3, 1.3))
    storms = tuple(
        _storm(random, natures, off) for _ in range(random.choice((1, 1, 1, 1, 1, 1, 1, 2)))
    )
    return WorldSettings(
        service, natures, fronts, regions, clocks_s, session_s, read_s, apply_s, calm_s, storms
    )


def _front(region: str) -> Front:
    others = tuple(each for each in (HOME, ABROAD) if each != region) if region else ()
    return Front("127.0.0.1", 8080, region, others, release="0")


def _storm(random: Random, natures: dict[int, Nature], off: frozenset[str]) -> Storm:
    length_s = STORM_S[0] + (STORM_S[1] - STORM_S[0]) * random.random()
    acts = sorted(
        (_act(random, natures, length_s) for _ in range(random.randint(2, 4))),
        key=lambda act: act.at_s,
    )
    return Storm(length_s, tuple(acts) if "acts" not in off else ())


def _act(random: Random, natures: dict[int, Nature], length_s: float) -> UserAction:
    # Nobody holds on to a version that ends every process which is sent a request of it.
    calm = [version for version, nature in natures.items() if nature is not Nature.CRASHING]
    what = random.choice(ACTS)
    among = calm if what in ("pin", "split") else sorted(natures)
    versions = tuple(random.sample(among, min(2, len(among))))
    return UserAction(length_s * random.random(), what, versions, random.randint(1, 4))
