"""What a seed decides before anything happens: versions and their natures, users, faults."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from random import Random
from typing import Final

from holdfast.serve.records import Limits, RolloutPolicy, Service

STORM_S: Final = 40.0
NAME: Final = "s"
POLICY: Final = RolloutPolicy(hold_s=1.0, ready_s=12.0, requests_min=20)
STEPS: Final = ((500, 2_500, 5_000), (2_500,), (500, 5_000))


class Nature(Enum):
    """What a version is like."""

    GOOD = "good"
    UNLOADABLE = "unloadable"  # no replica can load it
    PICKY = "picky"  # one machine cannot load it
    ERRING = "erring"  # it loads, and fails on many requests
    SLOW = "slow"
    CRASHING = "crashing"  # a request of it ends the process
    FATAL = "fatal"  # loading it ends the process


# Those that must never serve everything by a rollout of their own.
BAD: Final = frozenset(
    {Nature.UNLOADABLE, Nature.ERRING, Nature.SLOW, Nature.CRASHING, Nature.FATAL}
)

FAULTS: Final = {
    "kill replica": 8,
    "crash conductor": 4,
    "depose conductor": 3,  # it does not know, and has something in its hand
    "slow gateway": 4,
    "restart gateway": 2,
    "silence": 2,  # replicas do not answer questions for a while
}
ACTS: Final = (
    "target",
    "target",
    "target",
    "pin",
    "rollout",
    "split",
    "retire",
    "scale",
    "nothing",
)


@dataclass(frozen=True, slots=True)
class Act:
    """What a user does, and when."""

    at_s: float
    what: str
    versions: tuple[int, ...]
    number: int


@dataclass(frozen=True, slots=True)
class Settings:
    """A world before it begins."""

    service: Service
    natures: dict[int, Nature]
    gateways: int
    conductors: int
    apply_s: float  # the longest that a gateway takes to apply a course
    acts: tuple[Act, ...]
    faults: tuple[tuple[float, str], ...]


def draw(seed: int, off: frozenset[str]) -> Settings:
    """What this seed decides. `off`: faults and acts that do not happen, by kind or by name."""
    random = Random(f"{seed}/serving")  # noqa: S311 - chance, not secrets
    count = random.randint(3, 6)
    natures = {1: Nature.GOOD}
    for version in range(2, count + 1):
        natures[version] = Nature.GOOD if random.random() < 0.45 else random.choice(list(Nature))
    least = random.randint(1, 3)
    service = Service(
        NAME,
        NAME,
        "prod",
        replicas_min=least,
        replicas_max=least + random.choice((0, 0, 2)),
        policy=replace(POLICY, steps=random.choice(STEPS)),
        limits=Limits(timeout_s=1.0),
        created_s=0.0,
    )
    acts = sorted(
        (_act(random, natures) for _ in range(random.randint(2, 8))), key=lambda act: act.at_s
    )
    faults = []
    if random.random() < 0.8:
        for kind, most in FAULTS.items():
            if random.random() < 0.5:
                times = random.randint(1, most)
                faults += [(STORM_S * random.random(), kind) for _ in range(times)]
    named = [(at_s, kind, f"{kind}#{at}") for at, (at_s, kind) in enumerate(sorted(faults), 1)]
    return Settings(
        service,
        natures,
        random.randint(1, 3),
        random.randint(1, 2),
        random.choice((0.05, 0.05, 2.5)),
        tuple(acts) if "acts" not in off else (),
        tuple((at_s, kind) for at_s, kind, name in named if not {kind, name} & off),
    )


def _act(random: Random, natures: dict[int, Nature]) -> Act:
    # Nobody holds on to a version that ends every process which is sent a request of it.
    calm = [version for version, nature in natures.items() if nature is not Nature.CRASHING]
    what = random.choice(ACTS)
    among = calm if what in ("pin", "split") else sorted(natures)
    versions = tuple(random.sample(among, min(2, len(among))))
    return Act(STORM_S * random.random(), what, versions, random.randint(1, 4))
