"""What a seed decides before anything happens: how large the world is, and what runs in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from holdfast.control.spec import CheckpointPolicy, JobSpec, Mode, Resources, RestartPolicy
from simulation.arithmetic import undisturbed

STORM_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Training:
    """A job and the states that it must go through; of a job that serves: none."""

    spec: JobSpec
    steps: int
    number: int
    _states: dict[tuple[int, ...], Sequence[int]] = field(default_factory=dict)

    def state(self, step: int, effects: tuple[int, ...]) -> int | None:
        """The state after `step` of an undisturbed run in which the settings take effect at these
        steps; None: it has no such step."""
        if effects not in self._states:
            self._states[effects] = undisturbed(self.number, self.spec.lanes, self.steps, effects)
        states = self._states[effects]
        return states[step] if step < len(states) else None


@dataclass(frozen=True, slots=True)
class Wish:
    """What a user does at some time: `what` to job or node `target`."""

    at_s: float
    what: str
    target: str


@dataclass(frozen=True, slots=True)
class Settings:
    coordinators: Mapping[str, float]  # name -> by how much its clock is wrong, in seconds
    hosts: Mapping[str, Resources]
    trainings: Mapping[str, Training]
    wishes: tuple[Wish, ...]

    @property
    def services(self) -> dict[str, int]:
        """The jobs that serve, and how many replicas each is to have."""
        return {
            name: training.spec.workers_max
            for name, training in self.trainings.items()
            if training.spec.serves
        }


def drawn(seed: int) -> Settings:
    """The world of a seed."""
    random = Random(f"{seed}/world")  # noqa: S311 - chance, not secrets
    coordinators = {
        f"boss-{n}": random.choice((0.0, 0.0, -20.0, 3.0, 45.0))
        for n in range(1, random.randint(1, 3) + 1)
    }
    hosts = {
        f"node-{n}": Resources(cpu=float(random.randint(1, 3)))
        for n in range(1, random.randint(1, 4) + 1)
    }
    room = int(sum(room.cpu for room in hosts.values()))
    trainings = {}
    for number in range(random.choice((1, 1, 1, 2))):
        training = _training(random, number, room)
        trainings[training.spec.name] = training
    wishes = _wishes(random, list(trainings), list(hosts))
    # Of its own chance: the rest of the world is the same with it and without it.
    more = Random(f"{seed}/serving")  # noqa: S311 - chance, not secrets
    # What it may have is never what a training cannot do without.
    spare = room - max(training.spec.workers_min for training in trainings.values())
    if spare and more.random() < _SERVES:
        trainings["serve"] = _service(more, min(spare, 3))
        if more.random() < _SCALED:
            scaled = Wish(STORM_S * more.random(), "scale", "serve")
            wishes = tuple(sorted((*wishes, scaled), key=lambda wish: (wish.at_s, wish.what)))
    return Settings(coordinators, hosts, trainings, wishes)


def _training(random: Random, number: int, room: int) -> Training:
    lanes, steps = random.randint(1, 6), random.randint(5, 12)
    most = random.randint(1, min(lanes, 4))
    least = min(random.randint(1, most), room)
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
    return Training(spec, steps, number)


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
    return Training(spec, 0, 0)


def _wishes(random: Random, jobs: list[str], hosts: list[str]) -> tuple[Wish, ...]:
    wishes = []
    for what, chance in _WISHES:
        if random.random() < chance:
            target = random.choice(hosts if what == "drain" else jobs)
            wishes.append(Wish(STORM_S * random.random(), what, target))
    return tuple(sorted(wishes, key=lambda wish: (wish.at_s, wish.what)))


# The chance that a world serves something, and that its users change how much of it.
_SERVES: Final = 0.4
_SCALED: Final = 0.5
_WISHES: Final = (
    ("checkpoint", 0.3),
    ("drain", 0.25),
    ("pause", 0.2),
    ("scale", 0.3),
    ("set", 0.4),
    ("set", 0.2),
    ("stop", 0.05),
)
