"""Bad weather for the small world: faults drawn from a seed, and a network not to be trusted."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from holdfast.control.decide.commands import Order
from holdfast.control.decide.facts import ExitKind, Intent, Setting
from tests.unit.control.world import Machine, World


class Storm:
    """Faults, drawn from a seed, and a network that delays, doubles and loses."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.random = Random(seed)
        self.flying: list[tuple[float, Order]] = []
        self.errors = 0

    def tick(self) -> None:
        world, random = self.world, self.random
        world.now_s += random.choice([0.05, 0.3, 1.0, 3.0])
        self._strike()
        for node, machine in world.machines.items():
            if machine.there and (node not in world.reports or random.random() < 0.8):
                world.reports[node] = machine.report(node)
        unreported = random.random() < 0.1  # a new leader, to whom nobody has spoken yet
        world.unreported = frozenset(world.machines) if unreported else frozenset()
        for decision in world.decide():
            command = decision.command
            if isinstance(command, Order):
                for _ in range(random.choice([0, 1, 1, 1, 2])):
                    self.flying.append((world.now_s + random.choice([0.0, 0.1, 2.0]), command))
            elif random.random() < 0.03:
                break  # the leader dies in the middle
            else:
                world.write(decision)
        random.shuffle(self.flying)
        for due_s, order in self.flying:
            if due_s <= world.now_s:
                world.obey(order)
        self.flying = [entry for entry in self.flying if entry[0] > world.now_s]
        for job in world.desired.jobs:
            if random.random() < 0.8:
                world.move(job)

    def _strike(self) -> None:
        world, random = self.world, self.random
        jobs, nodes = list(world.desired.jobs), list(world.machines)
        workers = [w for m in world.machines.values() for w in m.workers.values() if w.alive]
        what = random.choice(
            ["kill", "error", "away", "back", "reboot", "corrupt", "ask", "cut", "heal"] + [""] * 14
        )
        machine = world.machines[random.choice(nodes)]
        if what == "kill" and workers:
            random.choice(workers).end(ExitKind.SIGNAL)
        elif what == "error" and workers and self.errors < 2:
            self.errors += 1
            random.choice(workers).end(ExitKind.ERROR, f"ValueError: {self.errors}")
        elif what == "away":
            self._away(machine)
        elif what == "back":
            machine.there = True
        elif what == "reboot":
            for worker in machine.workers.values():
                worker.end(ExitKind.LOST)
        elif what == "corrupt":
            job = random.choice(jobs)
            world.corrupt |= {(job, c.step) for c in world.desired.jobs[job].checkpoints[-1:]}
        elif what == "ask":
            self._ask(random.choice(jobs))
        elif what == "cut":
            job = random.choice(jobs)
            alive = sorted(world.alive(job))
            if len(alive) > 1:
                one, *peers = random.sample(alive, random.randint(2, len(alive)))
                world.cut |= {(job, one, peer) for peer in peers}
                if random.random() < 0.5:
                    world.cut |= {(job, peer, one) for peer in peers}
        elif what == "heal":
            world.cut.clear()
        if what:
            world.tell(f"* {what}")

    def _away(self, machine: Machine) -> None:
        """A session ends: what was said in it, in either direction, is not heard in the next."""
        machine.there = False
        self.world.refresh()
        machines = self.world.machines
        self.flying = [entry for entry in self.flying if machines[entry[1].node] is not machine]

    def _ask(self, job: str) -> None:
        world, random = self.world, self.random
        if world.desired.jobs[job].status.phase.final:
            return
        what = random.choice(["pause", "resume", "scale", "checkpoint", "drain", "set"])
        if what == "pause":
            world.change(job, intent=Intent.PAUSE)
        elif what == "resume":
            world.change(job, intent=Intent.RUN)
        elif what == "scale":
            world.change(job, workers_wanted=random.choice([1, 2, 3, None]))
        elif what == "checkpoint":
            world.change(job, checkpoint_asked=True)
        elif what == "set":
            known = world.desired.jobs[job].settings
            setting = Setting("lr", str(len(known)), random.choice([0, 0, 10, 25]))
            world.change(job, settings=(*known, setting))
        else:
            node = random.choice(list(world.machines))
            world.desired = replace(
                world.desired, draining_nodes=world.desired.draining_nodes ^ {node}
            )

    def calm(self) -> None:
        """The faults are over; the last late orders arrive."""
        world = self.world
        for machine in world.machines.values():
            machine.there = True
        world.unreported = frozenset()
        world.cut.clear()
        world.desired = replace(world.desired, draining_nodes=frozenset())
        for name, job in world.desired.jobs.items():
            if not job.status.phase.final:
                world.change(name, intent=Intent.RUN, workers_wanted=None)
        for _, order in self.flying:
            world.obey(order)
        self.flying = []
