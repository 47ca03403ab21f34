"""All that looks on while a script is played, and what the checks say of what it saw."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kazoo.client import KazooClient

from holdfast.coordination import Session
from holdfast.serve.records import job_name
from holdfast.serve.services import Services
from tests.proofs.chaos import judging
from tests.proofs.chaos.cast import DIRECTOR, MACHINE_CPU, REPLICA_CPU
from tests.proofs.chaos.clients.writer import REGISTERS, ROOT, SEQUENCE
from tests.proofs.chaos.histories import Call, Plane, Probe, Tail, writes_of
from tests.proofs.chaos.onlooker import Onlooker
from tests.proofs.chaos.processes import HostProcesses
from tests.proofs.chaos.rounds import Rounds
from tests.proofs.control import checks
from tests.proofs.control.checks import Ground, Violation
from tests.proofs.control.events import Term
from tests.proofs.control.watcher import Watcher
from tests.proofs.patience import PATIENCE_S
from tests.proofs.serving.cluster import SERVICE
from tests.proofs.training.trainings import LANES

# How often the histories are judged while it goes on.
JUDGE_S: Final = 30.0
# Not of the system: threads of theirs may complain when servers are killed.
CLIENTS: Final = ("caller", "prober", "writer")


class Observers:
    """The watcher of jobs, the onlooker of the service, the trainings, the clients' records."""

    def __init__(self, processes: HostProcesses, session: Session, models: tuple[str, ...]) -> None:
        self._processes = processes
        shown = processes.access.credential
        self.watcher = Watcher(processes.hosts(DIRECTOR), shown, processes.traces, processes.folder)
        self.onlooker = Onlooker(Services(session, "chaos"), processes)
        self.rounds = Rounds(session, self.watcher, processes.folder, processes.store, models)
        self.calls: list[Call] = []
        self.probes: list[Probe] = []
        self.failed: list[Call] = []  # nobody answered, and nothing was promised
        self.elsewhere = 0  # requests that the other gateway answered
        self.written = 0
        self._calls = Tail(processes.record("calls"))
        self._probes = [Tail(processes.record(f"probes-{host}")) for host in processes.gateways]
        self._events_read = 0
        self._term = 0
        self._judged_s = time.monotonic()

    @contextmanager
    def on(self) -> Iterator[None]:
        """Look on within."""
        watcher, processes = self.watcher, self._processes
        processes.note, processes.leading = watcher.note, lambda: watcher.leader
        watcher.start()
        self.onlooker.start()
        try:
            yield
        finally:
            processes.note = lambda _event: None
            self.onlooker.close()
            watcher.close()

    # --- what is seen -----------------------------------------------------------------------------

    def observed(self, passed_s: float) -> dict[str, float]:
        """The facts on which conditions are judged."""
        new = self.watcher.events[self._events_read :]
        self._events_read += len(new)
        for event in new:
            if isinstance(event, Term):
                self._term = event.term
        name = self.rounds.trainings[-1].name if self.rounds.trainings else ""
        plan = self.onlooker.plan
        return {
            "clock.seconds": passed_s,
            "job.step": self.rounds.step,
            "job.committed": self.watcher.committed.get(name, 0),
            "job.round": len(self.rounds.trainings),
            "leader.term": self._term,
            "service.ready": len(self.onlooker.ready),
            "service.version": (plan.stable or 0) if plan else 0,
            "service.answered": len(self.calls),
        }

    def read(self) -> None:
        """What clients have written down since the last time."""
        self.calls += [Call(**line) for line in self._calls.new()]
        self.probes += [Probe(**line) for tail in self._probes for line in tail.new()]

    def answered(self) -> bool:
        """By every gateway."""
        self.read()
        return {call.gateway for call in self.calls if not call.wrong} >= set(
            self._processes.gateways
        )

    # --- what is wrong ----------------------------------------------------------------------------

    def check(self) -> None:
        """Raises what is known to be wrong already. Asked often."""
        for trouble in (*self.watcher.troubles, self.rounds.trouble, self.onlooker.trouble):
            if isinstance(trouble, Violation):
                raise trouble
            if trouble is not None:
                raise AssertionError("somebody who looks on has failed") from trouble
        if time.monotonic() > self._judged_s + JUDGE_S:
            self._judged_s = time.monotonic()
            self.judge()

    def ground(self) -> Ground:
        names = [training.name for training in self.rounds.trainings]
        return Ground(
            lanes=dict.fromkeys(names, LANES),
            cpu={**dict.fromkeys(names, 1.0), job_name(SERVICE): REPLICA_CPU},
            capacity=dict.fromkeys(self._processes.cast.machines, MACHINE_CPU),
        )

    def judge(self) -> None:
        """What can be judged while it goes on."""
        self.read()
        history, ground = list(self.watcher.events), self.ground()
        for check in checks.EVERY:
            if check is not checks.answers_are_right:  # none may have ended yet
                check(history, ground)
        # The last probes of a request that has just ended may not be there yet.
        settled_s = time.time() - 2 * judging.BLIND_S
        calls = [call for call in self.calls if call.ended_s < settled_s]
        self._judge_requests(calls)
        plans, applied = list(self.onlooker.plans), list(self.onlooker.applied)
        judging.answers_are_of_a_version_that_is_served(calls, plans, applied)

    def _judge_requests(self, calls: list[Call]) -> None:
        lost, plans = list(self.onlooker.lost), list(self.onlooker.plans)
        strikes = list(self._processes.strikes)
        excused = judging.every_request_is_answered(calls, self.probes, strikes, lost, plans)
        self.failed = judging.unanswered(calls)
        self.elsewhere = len(
            {call.number for call in excused} - {one.number for one in self.failed}
        )

    def judge_end(self, late: list[str], left: list[str]) -> None:
        """All of it, when everything has ended."""
        self.judge()
        self._judge_requests(self.calls)
        checks.check(self.watcher.events, self.ground())
        judging.nothing_is_left(left, late)
        if self._processes.unasked:
            raise Violation("nothing ends by itself", "; ".join(self._processes.unasked[:5]))
        for log in sorted(self._processes.folder.glob("*.log")):
            ours = log.stem.partition("-")[0] in CLIENTS
            if not ours and "\nTraceback (most recent call last)" in log.read_text(
                errors="replace"
            ):
                raise Violation("no error goes uncaught", f"there is a traceback in {log}")

    def judge_quiet(self, since_s: float) -> None:
        """After all faults nothing fails any more, for whatever reason."""
        self.read()
        wrong = [call for call in self.calls if call.sent_s > since_s and call.wrong]
        if wrong:
            raise Violation("8", f"{len(wrong)} requests failed after all faults: {wrong[0].wrong}")

    def judge_writes(self) -> None:
        """Read with a plain client of ZooKeeper's family."""
        shown = [("digest", self._processes.access.credential)]
        client = KazooClient(self._processes.hosts(DIRECTOR), timeout=10.0, auth_data=shown)
        client.start(timeout=PATIENCE_S)
        try:
            sequence = {
                int(name[2:]): client.get(f"{SEQUENCE}/{name}")[0].decode()
                for name in client.get_children(SEQUENCE)
            }
            registers = {}
            for register in range(REGISTERS):
                value, stat = client.get(f"{ROOT}/{register}")
                registers[register] = (stat.version, value.decode())
        finally:
            client.stop()
            client.close()
        writes = writes_of(_lines(self._processes.record("writes")))
        found = judging.every_acknowledged_write_is_there(writes, Plane(sequence, registers))
        self.written = found


def _lines(path: Path) -> list[dict[str, object]]:
    return Tail(path).new()
