"""What a seed decides before anything happens: how large the world is, and what runs in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from holdfast.control.decide.spec import CheckpointPolicy, JobSpec, Mode, Resources, RestartPolicy
from simulation.arithmetic import Undisturbed
from simulation.sources import source


@dataclass(frozen=True, slots=True)
class Scale:
    """How large worlds are: what is drawn, each as likely as the others, or between two bounds."""

    coordinators: tuple[int, ...]
    hosts: tuple[int, ...]
    trainings: tuple[int, ...]
    lanes_max: int
    steps: tuple[int, int]
    storms: tuple[int, ...]
    storms_s: tuple[float, float]  # all of them together
    serves: float  # the chance that there is a service too


# Most trouble shows in a small world, and of those there can be many. Some needs a larger one.
SMALL: Final = Scale((1, 2, 2), (1, 2, 2), (1,), 4, (2, 4), (1, 1, 1, 2), (1.0, 2.5), 0.2)
LARGE: Final = Scale(
    (1, 2, 3), (1, 2, 2, 3, 3, 4), (1, 1, 2), 6, (3, 7), (1, 1, 2, 3), (1.5, 5.5), 0.5
)

_LARGE: Final = 0.15
# After a change a leader waits for more of them: so long, or so long.
_GATHER_S: Final = (0.02, 0.2, 0.5)


@dataclass(frozen=True, slots=True)
class Training:
    """A job and the states that it must go through; of a job that serves: none."""

    spec: JobSpec
    steps: int
    number: int
    undisturbed: Undisturbed


@dataclass(frozen=True, slots=True)
class UserAction:
    """What a user does at some time: `what` to job or node `target`."""

    at_s: float
    what: str
    target: str


@dataclass(frozen=True, slots=True)
class WorldSettings:
    coordinators: Mapping[str, float]  # name -> by how much its clock is wrong, in seconds
    hosts: Mapping[str, Resources]
    trainings: Mapping[str, Training]
    actions: tuple[UserAction, ...]
    storms_s: tuple[float, ...]  # how long each lasts
    gather_s: float  # how long a leader waits for more changes after one
    services: Mapping[str, int]  # the jobs that serve, and how many replicas each is to have


def drawn(seed: int) -> WorldSettings:
    """The world of a seed."""
    random = source(f"{seed}/world")
    scale = LARGE if random.random() < _LARGE else SMALL
    coordinators = {
        f"boss-{n}": random.choice((0.0, 0.0, -20.0, 3.0, 45.0))
        for n in range(1, random.choice(scale.coordinators) + 1)
    }
    hosts = {
        f"node-{n}": Resources(cpu=float(random.randint(1, 3)))
        for n in range(1, random.choice(scale.hosts) + 1)
    }
    capacity = int(sum(resources.cpu for resources in hosts.values()))
    trainings = {}
    for number in range(random.choice(scale.trainings)):
        training = _training(random, number, capacity, scale)
        trainings[training.spec.name] = training
    times = source(f"{seed}/storms")
    count = times.choice(scale.storms)
    storms_s = tuple(times.uniform(*scale.storms_s) / count for _ in range(count))
    gather_s = times.choice(_GATHER_S)
    actions = _actions(random, list(trainings), list(hosts), sum(storms_s))
    # Of its own chance: the rest of the world is the same with it and without it.
    more = source(f"{seed}/serving")
    # What it may have is never what a training cannot do without.
    spare = capacity - max(training.spec.workers_min for training in trainings.values())
    if spare and more.random() < scale.serves:
        trainings["serve"] = _service(more, min(spare, 3))
        if more.random() < _SCALED:
            scaled = UserAction(sum(storms_s) * more.random(), "scale", "serve")
            actions = tuple(
                sorted((*actions, scaled), key=lambda action: (action.at_s, action.what))
            )
    services = {name: one.spec.workers_max for name, one in trainings.items() if one.spec.serves}
    return WorldSettings(coordinators, hosts, trainings, actions, storms_s, gather_s, services)


def _training(random: Random, number: int, capacity: int, scale: Scale) -> Training:
    lanes, steps = random.randint(1, scale.lanes_max), random.randint(*scale.steps)
    # Rather more workers than fewer: alone nobody meets anybody.
    most = max(random.randint(1, min(lanes, 4)) for _ in range(2))
    least = min(random.randint(1, most), capacity)
    spec = JobSpec(
        name=f"job{number + 1}",
        command=("train",),
        priority=random.randint(0, 1),
        lanes=lanes,
        workers_min=least,
        workers_max=most,
        resources=Resources(cpu=1.0),
        checkpoint=CheckpointPolicy(
            every_steps=random.randint(1, 4), every_s=None, keep=random.randint(1, 2)
        ),
        # Users' own errors happen here too, but they must not end the job.
        restart=RestartPolicy(failures_max=1_000, backoff_s=0.2, backoff_s_max=1.0),
        settings=random.choice(({}, {"lr": "0.1"})),
    )
    return Training(spec, steps, number, Undisturbed(number, lanes, steps))


def _service(random: Random, most: int) -> Training:
    spec = JobSpec(
        name="serve",
        command=("serve",),
        priority=random.choice((0, 100)),
        workers_max=random.randint(1, most),
        resources=Resources(cpu=1.0),
        mode=Mode.SERVE,
        checkpoint=CheckpointPolicy(every_s=None),
        restart=RestartPolicy(failures_max=1, backoff_s=0.2, backoff_s_max=2.0),
    )
    return Training(spec, 0, 0, Undisturbed(0, 1, 0))


def _actions(
    random: Random, jobs: list[str], hosts: list[str], storm_s: float
) -> tuple[UserAction, ...]:
    actions = []
    for what, chance in _ACTIONS:
        if random.random() < chance:
            target = random.choice(hosts if what == "drain" else jobs)
            actions.append(UserAction(storm_s * random.random(), what, target))
    return tuple(sorted(actions, key=lambda action: (action.at_s, action.what)))


# The chance that users change how much of a service there is.
_SCALED: Final = 0.5
_ACTIONS: Final = (
    ("checkpoint", 0.3),
    ("drain", 0.25),
    ("pause", 0.2),
    ("scale", 0.3),
    ("set", 0.5),
    ("set", 0.3),
    ("stop", 0.05),
)
