"""The world of one seed: built, disturbed, left in peace, and judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from holdfast.agent.events import Key
from holdfast.control.decide.facts import (
    CheckpointRecovery,
    Intent,
    JobRecord,
    Phase,
    RecordedStatus,
    Setting,
)
from holdfast.coordination.embedded.transactions import SetData
from holdfast.wire.errors import HoldfastError
from holdfast.wire.orders import View
from simulation.agent_session import CONTACT, NODE_TURNS
from simulation.arithmetic import start_of
from simulation.blobs import Blobs, Manifest
from simulation.checks import WHOLE, Checks
from simulation.coordinator import JOBS, Coordinator
from simulation.faults import Faults
from simulation.host import Host
from simulation.kernel import Kernel, Violation
from simulation.network import Network
from simulation.plane import Plane
from simulation.settings import UserAction, WorldSettings, drawn
from simulation.strikes import Strikes
from simulation.verdict import NO_FAULTS_OFF, Kind, Verdict, verdict_of, with_story
from simulation.worker import HeldState, Worker

# A run that needs more than this does not end.
EVENTS_MAX: Final = 60_000
PEACE_S_MAX: Final = 900.0

LIVE = "every job ends, and every service is whole, once nothing goes wrong any more"
BUG = "the code under test found itself broken"


class World:
    """Everything that exists."""

    def __init__(
        self,
        seed: int,
        off: frozenset[str] = NO_FAULTS_OFF,
        *,
        traced: bool = False,
        own_checks: bool = True,
    ) -> None:
        self.seed = seed
        self.own_checks = own_checks  # also those that the code under test has of itself
        self.settings: WorldSettings = drawn(seed)
        self.kernel = Kernel(seed, traced=traced)
        self.faults = Faults(seed, sum(self.settings.storms_s), off)
        self.network = Network(self.kernel, self.faults)
        self.blobs = Blobs()
        self.collected: set[str] = set()
        self.happened: Counter[str] = Counter()
        self.stormy = False
        self.news = False  # something that a run waits for may have come about
        self.workers: dict[Key, Worker] = {}
        self.coordinators: list[Coordinator] = []
        self.hosts: dict[str, Host] = {}
        self.plane = Plane(self.kernel, self.network, self.faults)
        self.checks = Checks(self)
        self.strikes = Strikes(self)
        self._submit()
        self.hosts.update(
            {name: Host(self, name, resources) for name, resources in self.settings.hosts.items()}
        )
        self.coordinators.extend(
            Coordinator(self, name, skew_s) for name, skew_s in self.settings.coordinators.items()
        )

    def _submit(self) -> None:
        self.plane.make("/holdfast/draining", self.plane.keep(frozenset()))
        self.plane.make(CONTACT)
        self.plane.make(NODE_TURNS)
        for host in self.settings.hosts:
            self.plane.make(f"{NODE_TURNS}/{host}")
        for name, training in self.settings.trainings.items():
            status = RecordedStatus(Phase.QUEUED, "it has just come", 0.0)
            job = JobRecord(spec=training.spec, submitted_s=0.0, status=status)
            self.checks.jobs[name] = job
            self.plane.make(f"{JOBS}/{name}", self.plane.keep(job))
            self.plane.make(f"{JOBS}/{name}/checkpoints")

    # --- what others need -----------------------------------------------------------------------

    def process(self, key: Key) -> Worker | None:
        """A worker's process, if it is alive."""
        worker = self.workers.get(key)
        return worker if worker is not None and worker.up else None

    def restored(self, worker: Worker, view: View) -> HeldState | None:
        """The state that `view` begins from; None if this worker cannot have it."""
        step, training = view.restore_step, worker.training
        if step is None:
            return None
        self.checks.restores(worker, view, step)
        self.happened["restore"] += 1
        if step == 0:
            return HeldState(0, start_of(training.number))
        if step in worker.unreadable or view.manifest in self.blobs.lost:
            worker.cannot_read(step)
            return None
        node = self.plane.tree.find(f"{JOBS}/{worker.key.job}/checkpoints/{step}")
        current = self.checks.jobs[worker.key.job].view
        if node is None:
            if current is not None and current.number == view.number:
                raise Violation(WHOLE, f"{worker.name} needs step {step}, which is not committed")
            return None
        found = self.blobs.read_whole(self.plane.value(node.data).manifest)
        if isinstance(found, str):
            raise Violation(WHOLE, f"{worker.name} cannot read step {step}: {found}")
        return HeldState(*found)

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

    def run(self) -> Verdict:
        """Storms with quiet between them, then peace, then the judgement."""
        rule = what = ""
        try:
            self._begin()
            self._storms()
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
        finally:
            for host in self.hosts.values():
                host.agent.loop.end()
        if rule:
            self.kernel.tell("CHECK", f"{rule}: {what}")
        return verdict_of(self.seed, self.kernel, self.faults, self.happened, (rule, what))

    def _begin(self) -> None:
        kernel = self.kernel
        started: list[Coordinator | Host] = [*self.coordinators, *self.hosts.values()]
        for each in started:
            start = each.start if isinstance(each, Coordinator) else each.agent.start
            kernel.after(kernel.between(0.0, 0.3), start)

    def _storms(self) -> None:
        """One after the other; in between nothing goes wrong, and all must go on."""
        stormy_s = 0.0
        for storm_s in self.settings.storms_s:
            if stormy_s:
                self._have_quiet()
            self._storm(stormy_s, stormy_s + storm_s)
            stormy_s += storm_s

    def _storm(self, from_s: float, to_s: float) -> None:
        """What is planned between the two, in the time of storms."""
        kernel = self.kernel
        self.faults.quiet = False
        for fault in self.faults.planned:
            if from_s <= fault.at_s < to_s:
                strike = partial(self.strikes.strike, fault.kind)
                kernel.after(fault.at_s - from_s, strike)
        for action in self.settings.actions:
            if from_s <= action.at_s < to_s:
                kernel.after(action.at_s - from_s, partial(self._act, action))
        self.stormy = True
        kernel.after(to_s - from_s, self._end_storm)
        self._until(lambda: not self.stormy or self._all_over())

    def _have_quiet(self) -> None:
        """Nothing goes wrong until every job has gone on, or has a reason not to."""
        self.kernel.tell("world", "is quiet")
        self.happened["quiet"] += 1
        self._calm()
        before = {name: self._step(name) for name in self.checks.unfinished}
        self._until(lambda: all(self._goes_on(name, before) for name in before))

    def _step(self, name: str) -> int:
        """The most advanced step that anybody of a job holds, or that is committed."""
        held = [worker.held.step for worker in self._living(name) if worker.held is not None]
        return max([self.checks.jobs[name].committed_step, *held])

    def _living(self, name: str) -> list[Worker]:
        return [one for one in self.workers.values() if one.key.job == name and one.up]

    def _goes_on(self, name: str, before: Mapping[str, int]) -> bool:
        """Whether a job has made a step since, or has ended; a service need not. One that its user
        does not want to run leaves; one that finds no room waits."""
        job = self.checks.jobs[name]
        if job.status.phase.final or job.spec.serves or self._step(name) > before[name]:
            return True
        if self._step(name) == self.settings.trainings[name].steps:
            return True  # its last step is made, and is being committed
        draining = self.plane.value(self.plane.tree.nodes["/holdfast/draining"].data)
        if job.placements or self._living(name):
            # With too little room left by whoever drains a machine, the first ones wait for others.
            return bool(draining) and len(job.placements) < job.spec.workers_min
        others = any(other.placements for other in self.checks.jobs.values())
        return job.intent is not Intent.RUN or bool(draining) or others

    def _until(self, done: Callable[[], bool]) -> None:
        """Go on until it is done; looked at whenever there is `news` of a job or of a process."""
        kernel, step = self.kernel, self.kernel.step
        while not done():
            self.news = False
            while not self.news:
                if not step():
                    raise Violation(LIVE, f"nothing happens any more: {self._state_of_jobs()}")
                if kernel.events > EVENTS_MAX or kernel.now_s > PEACE_S_MAX:
                    raise Violation(LIVE, self._state_of_jobs())

    def _end_storm(self) -> None:
        self.stormy = False
        self.news = True

    def _all_over(self) -> bool:
        return not self.checks.unfinished and not any(
            host.processes or host.shims for host in self.hosts.values()
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
        self._calm()
        self.plane.do(SetData("/holdfast/draining", self.plane.keep(frozenset()), -1))
        for name in self.settings.trainings:
            self._change(name, lambda job: _wants(job, Intent.RUN))

    def _calm(self) -> None:
        """What is broken is mended, who is stopped goes on."""
        self.faults.quiet = True
        self.network.heal()
        for process in [*self.coordinators, *(host.agent for host in self.hosts.values())]:
            process.go_on()
        for worker in self.workers.values():
            worker.go_on()

    def dispose(self) -> None:
        """Let go of everything, so that nothing is left for the collector of cycles: it would cost
        a tenth of the run."""
        self.kernel.forget()
        parts: list[object] = [*self.workers.values(), *self.coordinators]
        for host in self.hosts.values():
            parts += (host.agent, host.folders, host)
        for part in (*parts, self.plane, self.network, self.checks, self.strikes, self):
            vars(part).clear()

    # --- users ----------------------------------------------------------------------------------

    def pause(self, name: str) -> None:
        """Its user wants a job to pause."""
        self._change(name, lambda job: _wants(job, Intent.PAUSE))

    def resume(self, name: str) -> None:
        """... and to go on."""
        self._change(name, lambda job: _wants(job, Intent.RUN))

    def stranded(self, name: str) -> None:
        """Its user is told that no checkpoint of a job can be read, and does something about it:
        mends the store, tries again in vain, or gives them up."""
        self.happened["stranded"] += 1
        chance = self.faults.store
        what = chance.choice(("mends the store", "tries again", "gives up"))
        self.kernel.after(chance.uniform(0.1, 1.0), lambda: self._recover(name, what))

    def _recover(self, name: str, what: str) -> None:
        self.kernel.tell("user", what, name)
        recovery = CheckpointRecovery.AGAIN
        if what == "mends the store":
            self.blobs.lost.clear()
        elif what == "gives up":
            recovery = CheckpointRecovery.SCRATCH
            self.checks.given_up.add(name)
        self._change(name, lambda job: replace(job, recovery=recovery))

    def _change(self, name: str, change: Callable[[JobRecord], JobRecord]) -> None:
        path = f"{JOBS}/{name}"
        job: JobRecord = self.plane.value(self.plane.tree.nodes[path].data)
        after = change(job)
        if after != job and not job.status.phase.final:
            self.plane.do(SetData(path, self.plane.keep(after), -1))

    def _act(self, action: UserAction) -> None:
        self.kernel.tell("user", action.what, action.target)
        random = self.faults.random
        if action.what == "drain":
            data = self.plane.keep(frozenset({action.target}))
            self.plane.do(SetData("/holdfast/draining", data, -1))
        elif action.what == "pause":
            self.pause(action.target)
        elif action.what == "stop":
            self._change(action.target, lambda job: _wants(job, Intent.STOP))
        elif action.what == "checkpoint":
            self._change(action.target, lambda job: replace(job, checkpoint_asked=True))
        elif action.what == "set":
            at_step = random.choice((0, random.randint(1, 7)))
            self._change(action.target, lambda job: _with_setting(job, at_step))
        else:
            most = self.settings.trainings[action.target].spec.workers_max
            wanted = random.randint(1, most)
            self._change(action.target, lambda job: replace(job, workers_wanted=wanted))


def _with_setting(job: JobRecord, at_step: int) -> JobRecord:
    setting = Setting("lr", str(len(job.settings)), at_step)
    return replace(job, settings=(*job.settings, setting))


def _wants(job: JobRecord, intent: Intent) -> JobRecord:
    """What a user last asked; a stop is final."""
    return job if job.intent is Intent.STOP else replace(job, intent=intent)


def run(
    seed: int,
    off: frozenset[str] = NO_FAULTS_OFF,
    *,
    traced: bool = False,
    own_checks: bool = True,
) -> Verdict:
    """Run a seed."""

    def play(traced: bool) -> Verdict:
        world = World(seed, off, traced=traced, own_checks=own_checks)
        verdict = world.run()
        world.dispose()
        return verdict

    return with_story(play, traced)


CONTROL: Final = Kind("simulation", run)
