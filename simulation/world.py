"""The world of one seed: built, disturbed, left in peace, and judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from holdfast.agent.events import Ending, Key
from holdfast.control.facts import Intent, Job, Phase, Setting, Status
from holdfast.coordination.embedded.transactions import SetData
from holdfast.wire.errors import HoldfastError
from holdfast.wire.orders import View
from simulation.arithmetic import start_of
from simulation.blobs import Blobs, Manifest
from simulation.checks import WHOLE, Checks
from simulation.coordinator import JOBS, Coordinator
from simulation.faults import Faults
from simulation.host import NODE_TURNS, Host
from simulation.kernel import Being, Kernel, Violation
from simulation.network import Network
from simulation.plane import Plane
from simulation.settings import STORM_S, Settings, Wish, drawn
from simulation.worker import Held, Worker

# A run that needs more than this does not end.
EVENTS_MAX: Final = 60_000
PEACE_S_MAX: Final = 900.0
PAUSE_S: Final = (0.2, 5.0)

LIVE = "every job ends, and every service is whole, once nothing goes wrong any more"
BUG = "the code under test found itself broken"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run came to. `rule` is empty if nothing was wrong."""

    seed: int
    rule: str
    what: str
    events: int
    simulated_s: float
    faults: tuple[str, ...]
    story: tuple[str, ...]
    digest: str
    happened: Mapping[str, int]  # what was decided, done and refused, by kind

    @property
    def ok(self) -> bool:
        return not self.rule


class World:
    """Everything that exists."""

    def __init__(
        self, seed: int, off: frozenset[str] = frozenset(), *, own_checks: bool = True
    ) -> None:
        self.seed = seed
        self.own_checks = own_checks  # also those that the code under test has of itself
        self.settings: Settings = drawn(seed)
        self.kernel = Kernel(seed)
        self.faults = Faults(seed, STORM_S, off)
        self.network = Network(self.kernel, self.faults)
        self.blobs = Blobs()
        self.collected: set[str] = set()
        self.happened: Counter[str] = Counter()
        self.workers: dict[Key, Worker] = {}
        self.coordinators: list[Coordinator] = []
        self.hosts: dict[str, Host] = {}
        self.plane = Plane(self.kernel, self.network, self.faults)
        self.checks = Checks(self)
        self._submit()
        self.hosts.update(
            {name: Host(self, name, room) for name, room in self.settings.hosts.items()}
        )
        self.coordinators.extend(
            Coordinator(self, name, skew_s) for name, skew_s in self.settings.coordinators.items()
        )

    def _submit(self) -> None:
        self.plane.make("/holdfast/draining", self.plane.keep(frozenset()))
        self.plane.make(NODE_TURNS)
        for host in self.settings.hosts:
            self.plane.make(f"{NODE_TURNS}/{host}")
        for name, training in self.settings.trainings.items():
            status = Status(Phase.QUEUED, "it has just come", 0.0)
            job = Job(spec=training.spec, submitted_s=0.0, status=status)
            self.checks.jobs[name] = job
            self.plane.make(f"{JOBS}/{name}", self.plane.keep(job))
            self.plane.make(f"{JOBS}/{name}/checkpoints")

    # --- what others need -----------------------------------------------------------------------

    def process(self, key: Key) -> Worker | None:
        """A worker's process, if it is alive."""
        worker = self.workers.get(key)
        return worker if worker is not None and worker.up else None

    def restored(self, worker: Worker, view: View) -> Held | None:
        """The state that `view` begins from; None if this worker cannot have it."""
        step, training = view.restore_step, worker.training
        if step is None:
            return None
        self.checks.restores(worker, view, step)
        self.happened["restore"] += 1
        if step == 0:
            return Held(0, start_of(training.number))
        node = self.plane.tree.find(f"{JOBS}/{worker.key.job}/checkpoints/{step}")
        current = self.checks.jobs[worker.key.job].view
        if node is None:
            if current is not None and current.number == view.number:
                raise Violation(WHOLE, f"{worker.name} needs step {step}, which is not committed")
            return None
        found = self.blobs.read_whole(self.plane.value(node.data).manifest)
        if isinstance(found, str):
            raise Violation(WHOLE, f"{worker.name} cannot read step {step}: {found}")
        return Held(*found)

    def collect(self, manifest_key: str) -> None:
        """Remove a manifest and those of its parts that no other manifest names."""
        manifest = self.blobs.held.get(manifest_key)
        if not isinstance(manifest, Manifest):
            return
        self.blobs.remove(manifest_key)
        kept = {
            part.key
            for other in self.blobs.held.values()
            if isinstance(other, Manifest)
            for part in other.parts
        }
        for part in manifest.parts:
            if part.key not in kept:
                self.blobs.remove(part.key)
                self.collected.add(part.key)

    # --- a run ----------------------------------------------------------------------------------

    def run(self, *, traced: bool = False) -> Verdict:
        """A storm, then peace, then the judgement. `traced`: with the digest of the trace."""
        rule = what = ""
        try:
            self._begin()
            self._until(lambda: self.kernel.now_s >= STORM_S or self._all_over())
            self._make_peace()
            self._until(self._all_trained)
            self._until(self._all_served)
            for name in self.settings.services:
                self._change(name, lambda job: _wants(job, Intent.STOP))
            self._until(self._all_over)
            self.checks.ended()
        except Violation as violation:
            rule, what = violation.rule, violation.what
        except (HoldfastError, AssertionError) as error:
            rule, what = BUG, f"{type(error).__name__}: {error}"
        if rule:
            self.kernel.tell("CHECK", f"{rule}: {what}")
        kernel = self.kernel
        return Verdict(
            self.seed,
            rule,
            what,
            kernel.events,
            kernel.now_s,
            tuple(self.faults.struck),
            tuple(kernel.story()) if rule else (),
            kernel.digest() if rule or traced else "",
            dict(self.happened),
        )

    def _begin(self) -> None:
        kernel = self.kernel
        beings: list[Coordinator | Host] = [*self.coordinators, *self.hosts.values()]
        for being in beings:
            start = being.start if isinstance(being, Coordinator) else being.agent.start
            kernel.after(kernel.between(0.0, 0.3), start)
        for fault in self.faults.planned:
            kernel.after(fault.at_s, lambda kind=fault.kind: self._strike(kind))  # type: ignore[misc]
        for wish in self.settings.wishes:
            kernel.after(wish.at_s, lambda wish=wish: self._wish(wish))  # type: ignore[misc]
        kernel.after(STORM_S, lambda: None)

    def _until(self, done: Callable[[], bool]) -> None:
        kernel = self.kernel
        while not done():
            if kernel.events > EVENTS_MAX or kernel.now_s > STORM_S + PEACE_S_MAX:
                raise Violation(LIVE, self._state_of_jobs())
            if not kernel.step():
                raise Violation(LIVE, f"nothing happens any more: {self._state_of_jobs()}")

    def _all_over(self) -> bool:
        return not self.checks.unfinished and not any(
            host.processes for host in self.hosts.values()
        )

    def _all_trained(self) -> bool:
        return self.checks.unfinished <= self.settings.services.keys()

    def _all_served(self) -> bool:
        """Whether every service that nobody has stopped has as many replicas as it wants: there is
        room for all of them now."""
        jobs = self.checks.jobs
        return all(
            jobs[name].intent is Intent.STOP
            or self.checks.serves(name, jobs[name].workers_wanted or most)
            for name, most in self.settings.services.items()
        )

    def _state_of_jobs(self) -> str:
        said = []
        for name, job in self.checks.jobs.items():
            said.append(f"{name} is {job.status.phase.value} ({job.status.reason})")
        return "; ".join(said)

    def _make_peace(self) -> None:
        """From now on nothing goes wrong, and users want what they wanted at first."""
        self.kernel.tell("world", "is at peace")
        self.faults.quiet = True
        self.network.cut.clear()
        self.network.parted.clear()
        for being in [*self.coordinators, *(host.agent for host in self.hosts.values())]:
            being.go_on()
        for worker in self.workers.values():
            worker.go_on()
        self.plane.do(SetData("/holdfast/draining", self.plane.keep(frozenset()), -1))
        for name in self.settings.trainings:
            self._change(name, lambda job: _wants(job, Intent.RUN))

    # --- users ----------------------------------------------------------------------------------

    def _change(self, name: str, change: Callable[[Job], Job]) -> None:
        path = f"{JOBS}/{name}"
        job: Job = self.plane.value(self.plane.tree.nodes[path].data)
        after = change(job)
        if after != job and not job.status.phase.final:
            self.plane.do(SetData(path, self.plane.keep(after), -1))

    def _wish(self, wish: Wish) -> None:
        self.kernel.tell("user", wish.what, wish.target)
        random = self.faults.random
        if wish.what == "drain":
            data = self.plane.keep(frozenset({wish.target}))
            self.plane.do(SetData("/holdfast/draining", data, -1))
        elif wish.what == "pause":
            self._change(wish.target, lambda job: _wants(job, Intent.PAUSE))
        elif wish.what == "stop":
            self._change(wish.target, lambda job: _wants(job, Intent.STOP))
        elif wish.what == "checkpoint":
            self._change(wish.target, lambda job: replace(job, checkpoint_asked=True))
        elif wish.what == "set":
            at_step = random.choice((0, random.randint(1, 12)))
            self._change(wish.target, lambda job: _with_setting(job, at_step))
        else:
            most = self.settings.trainings[wish.target].spec.workers_max
            wanted = random.randint(1, most)
            self._change(wish.target, lambda job: replace(job, workers_wanted=wanted))

    # --- faults ---------------------------------------------------------------------------------

    def _strike(self, kind: str) -> None:
        if not self.faults.happens(kind):
            return
        random = self.faults.random
        hosts = list(self.hosts.values())
        host, boss = random.choice(hosts), random.choice(self.coordinators)
        pause_s = PAUSE_S[0] + (PAUSE_S[1] - PAUSE_S[0]) * random.random()
        self.kernel.tell("FAULT", kind)
        if kind.endswith("worker"):
            alive = [worker for worker in self.workers.values() if worker.up]
            if alive:
                self._strike_worker(kind, random.choice(alive), pause_s)
        elif kind == "crash agent":
            host.agent.crash()
        elif kind == "pause agent":
            self.pause(host.agent, host.name, pause_s)
        elif kind == "cut agent":
            self.plane.expect_silence(host.name)
            self.network.cut.add(host.name)
            self.kernel.tell(host.name, "is cut off")
            self.kernel.after(pause_s, lambda: self.network.cut.discard(host.name))
        elif kind == "part machines":
            self._part(host, random.choice(hosts), 2 * pause_s)
        elif kind == "crash machine":
            host.crash()
        elif kind == "crash coordinator":
            boss.crash()
        elif kind == "pause coordinator":
            self.pause(boss, boss.name, pause_s)
        elif kind == "expire session":
            self.plane.expire(random.choice([host.agent.client, boss.client]).session)
        elif kind == "restart plane":
            self.plane.fail(pause_s / 3)
        else:
            for each in hosts:
                each.crash()
            for one in self.coordinators:
                one.crash()

    def _part(self, one: Host, other: Host, pause_s: float) -> None:
        """Neither reaches the other; both reach everyone else."""
        if one is not other:
            pair = frozenset((one.name, other.name))
            self.network.parted.add(pair)
            self.kernel.after(pause_s, lambda: self.network.parted.discard(pair))

    def _strike_worker(self, kind: str, worker: Worker, pause_s: float) -> None:
        if kind == "kill worker":
            worker.end(Ending(signal=9))
        else:
            self.pause(worker, "", pause_s)

    def pause(self, being: Being, machine: str, pause_s: float) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        if not being.up or being.stopped:
            return
        being.tell("is stopped")
        if machine:
            self.plane.expect_silence(machine)
        being.stop()
        life = being.life

        def go_on() -> None:
            if being.life == life and being.stopped:
                being.tell("goes on")
                being.go_on()

        self.kernel.after(pause_s, go_on)


def _with_setting(job: Job, at_step: int) -> Job:
    setting = Setting("lr", str(len(job.settings)), at_step)
    return replace(job, settings=(*job.settings, setting))


def _wants(job: Job, intent: Intent) -> Job:
    """What a user last asked; a stop is final."""
    return job if job.intent is Intent.STOP else replace(job, intent=intent)
