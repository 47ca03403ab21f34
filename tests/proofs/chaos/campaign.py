"""A cluster on its hosts, trained on and served from, while a script is played."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from holdfast.coordination import Session
from holdfast.serve.records import RolloutPolicy, ServiceSpec
from holdfast.serve.services import Services
from holdfast.wire.errors import Conflict
from holdfast.wire.resources import Resources
from tests.proofs.chaos import telling
from tests.proofs.chaos.cast import REPLICA_BYTES, REPLICA_CPU
from tests.proofs.chaos.disks import Disks
from tests.proofs.chaos.hand import Hand
from tests.proofs.chaos.loopback import Loopback
from tests.proofs.chaos.network import Namespaces, Network, end_marked, marked, words_of
from tests.proofs.chaos.observers import Observers
from tests.proofs.chaos.plan import Plan
from tests.proofs.chaos.processes import HostProcesses
from tests.proofs.chaos.rolls import Rolls
from tests.proofs.chaos.rounds import undisturbed
from tests.proofs.chaos.script import Chaos, Playing
from tests.proofs.control.checks import Violation
from tests.proofs.control.stories import story
from tests.proofs.patience import PATIENCE_S, patiently
from tests.proofs.serving.cluster import SERVICE
from tests.proofs.serving.models import MODEL, Publisher

LOOK_S: Final = 0.05
# After the faults everything must be answered; so long that is watched.
QUIET_S: Final = 3.0
# While everything is killed and slowed, latency says nothing of a version.
POLICY: Final = RolloutPolicy(
    steps=(1_000, 5_000), hold_s=0.4, requests_min=5, latency_slack_ms=60_000.0
)


class Campaign:
    """One run over a folder of its own. `look` is told, often, how far it is."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        look: Callable[[str], None] = lambda _line: None,
        script: Chaos | None = None,
    ) -> None:
        self.plan, self.folder = plan, folder
        self.tally: Counter[str] = Counter()
        self.took_s = 0.0
        self.broken: list[str] = []  # the promise that was broken, if one was
        self.observers: Observers | None = None
        self._look = look
        self._script = script or plan.script()

    def run(self) -> None:
        """Everything; raises `Violation`. Afterwards nothing is left running."""
        began_s = time.monotonic()
        try:
            with ExitStack() as stack:
                network = self._network()
                stack.callback(network.close)
                network.enter()
                disks = Disks()
                stack.callback(disks.close)
                pool = stack.enter_context(ThreadPoolExecutor())
                plan = self.plan
                right = pool.submit(undisturbed, plan.models, plan.epochs, self.folder)
                processes = HostProcesses(self.folder, network, disks, plan.cast, plan.rate)
                stack.callback(_clear, processes)
                if plan.disks:
                    processes.lay_disks()
                self._play(processes, right)
        except AssertionError as broken:
            self.broken.append(str(broken))
            raise
        finally:
            self.took_s = time.monotonic() - began_s

    def _network(self) -> Network:
        hosts = self.plan.cast.hosts
        return Namespaces(hosts) if self.plan.namespaces else Loopback(hosts)

    def _play(self, processes: HostProcesses, right: Future[dict[str, str]]) -> None:
        with processes.start(lambda what: self._look(f"starting {what}")) as session:
            observers = self.observers = Observers(processes, session, self.plan.models)
            with observers.on():
                self._run_script(processes, session, observers, right)
                observers.judge_writes()
        self._look("ending everything")
        late = processes.end()
        left = [words_of(pid) for pid, _, _ in marked(processes.run)]
        observers.judge_end(late, left)

    def _run_script(
        self,
        processes: HostProcesses,
        session: Session,
        observers: Observers,
        right: Future[dict[str, str]],
    ) -> None:
        services = Services(session, "chaos")
        publisher = Publisher(
            processes.cluster(self.plan.cast.gateways[0]), session, self.folder / "code"
        )
        self._serve(services, publisher)
        self._await(self._settled, "all replicas serve")
        self._await(right.done, "a training without any fault has ended, for its bits")
        rolls = Rolls(services, publisher, observers.watcher.note)
        rolls.start()
        processes.start_clients()
        self._await(observers.answered, "requests are answered")
        observers.rounds.start(self.plan.epochs, right.result())
        hand = Hand(processes, rolls.ask)
        self.tally = hand.tally
        self._disturb(hand, observers)
        self._settle(processes, hand, rolls, observers)

    def _serve(self, services: Services, publisher: Publisher) -> None:
        first = patiently(publisher.publish)
        replicas = len(self.plan.cast.machines)
        service = ServiceSpec(
            SERVICE,
            MODEL,
            str(first),
            replicas_min=replicas,
            replicas_max=replicas,
            resources=Resources(cpu=REPLICA_CPU, memory_bytes=REPLICA_BYTES),
            policy=POLICY,
        )
        try:
            patiently(lambda: services.create(service))
        except Conflict:
            services.ensure_job(SERVICE)  # an earlier try had been heard

    def _disturb(self, hand: Hand, observers: Observers) -> None:
        playing, began_s = Playing(self._script), time.monotonic()
        while (passed_s := time.monotonic() - began_s) < self.plan.seconds:
            observers.read()
            hand.turn()
            for act in playing.due(observers.observed(passed_s)):
                if not hand.do(act):
                    self.tally["acts that met nobody"] += 1
            observers.check()
            seconds = self.plan.seconds
            self._look(telling.line(seconds, passed_s, self.tally, observers, hand.last))
            time.sleep(LOOK_S)  # pause: between two looks at what is due
        self.tally["acts whose condition never held"] += playing.left

    def _settle(
        self, processes: HostProcesses, hand: Hand, rolls: Rolls, observers: Observers
    ) -> None:
        """No more faults: everything comes back, the training ends, the rollout settles."""
        hand.peace()
        observers.rounds.finish()
        rolls.close()
        if rolls.trouble is not None:
            raise AssertionError("a rollout could not be asked for") from rolls.trouble
        self._await(self._settled, "the service settles")
        self._await(lambda: observers.rounds.over, "the training ends")
        quiet_s = time.time()
        self._await(lambda: time.time() > quiet_s + QUIET_S, "a quiet time has passed")
        processes.end_clients()
        observers.judge_quiet(quiet_s)

    def _settled(self) -> bool:
        assert self.observers is not None
        return self.observers.onlooker.settled(len(self.plan.cast.machines))

    def _await(self, ready: Callable[[], bool], what: str) -> None:
        observers = self.observers
        assert observers is not None
        until_s = time.monotonic() + PATIENCE_S
        while not ready():
            observers.check()
            self._look(f"waiting until {what}")
            if time.monotonic() > until_s:
                why = f"{observers.rounds.why}; {observers.onlooker.plan}"
                raise Violation("progress", f"not within {PATIENCE_S:g} s: {what}; {why}")
            time.sleep(LOOK_S)  # pause: between two looks, each of which also checks

    # --- what people see --------------------------------------------------------------------------

    def figures(self) -> dict[str, int | float]:
        if self.observers is None:
            return {"seconds": round(self.took_s)}
        found = telling.figures(self.tally, self.observers, self.took_s)
        return {**found, "violations": len(self.broken)}

    def told(self) -> str:
        """The figures as a table, and when requests failed although nothing was promised."""
        if self.observers is None:
            return ""
        gaps = telling.gaps(self.observers.failed)
        return telling.table(self.figures()) + (f"\n{gaps}" if gaps else "")

    def story(self) -> str:
        return (
            story(self.observers.watcher.events, telling.STORY)
            if self.observers is not None
            else ""
        )


def _clear(processes: HostProcesses) -> None:
    """Whatever has happened: nobody is left."""
    processes.end_at_once()
    end_marked(processes.run)
