"""The cluster of the proof, and doing to it what a schedule says."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from holdfast.control.decide.facts import JobRecord
from holdfast.control.store.plane import ControlPlane
from holdfast.coordination import Election, Session, connect
from holdfast.storage import open_store
from holdfast.wire.errors import Conflict, HoldfastError, RetryError
from holdfast.wire.names import LEADER_PATH
from tests.proofs.control.cluster import ProofCluster
from tests.proofs.control.events import Event, Fault
from tests.proofs.control.faults import Strike
from tests.proofs.patience import patiently
from tests.proofs.training import judging
from tests.proofs.training.schedules import Move
from tests.proofs.training.trainings import CHANGED_RATE, Training

# Without a step of the training, and without its end, for so long nothing goes on any more.
STUCK_S: Final = 600.0
LOOK_S: Final = 0.05


class TrainingCluster:
    """A cluster on which one training after the other is played."""

    def __init__(self, folder: Path, cluster: ProofCluster, session: Session) -> None:
        self.folder = folder
        self.cluster = cluster
        self.plane = ControlPlane(session)
        self.blobs = open_store(cluster.store.address)
        self.story: list[str] = []  # of the training that is played now
        self.made: Counter[str] = Counter()  # moves that met somebody, of all trainings
        self._began_s = time.monotonic()
        election = Election(session, LEADER_PATH)
        cluster.leading = lambda: _leader(election)
        cluster.note = self._note

    def play(
        self, training: Training, moves: tuple[Move, ...], workers: int | None = None
    ) -> JobRecord:
        """Train it, do all that to it, and wait for its end."""
        self.story, self._began_s = [], time.monotonic()
        patiently(lambda: self._submit(training))
        if workers is not None:
            self._scale(training, workers)
        for move in moves:
            if not self._reach(training, move.at_step):
                self._say(f"it had ended before {move.kind} at {move.at_step}")
                break
            self._make(training, move)
        self.cluster.all_back()
        self._reach(training, training.steps + 1)
        return patiently(lambda: self.plane.job(training.name))

    def _submit(self, training: Training) -> None:
        try:
            self.plane.submit(training.spec(self.folder))
        except Conflict:
            if training.name not in self.plane.jobs():
                raise
            # An earlier try had been heard.
        if training.set_at is not None:
            # Told long before its step: so it is in effect from exactly that one on.
            self.plane.change_setting(training.name, "lr", CHANGED_RATE, training.set_at)

    def _scale(self, training: Training, workers: int) -> None:
        try:
            patiently(lambda: self.plane.scale(training.name, workers))
            self.made["scale"] += 1
            self._say(f"scale to {workers}")
        except HoldfastError as error:
            if not self._ended(training):
                raise
            self._say(f"scale to {workers} came too late: {error.what}")

    def _make(self, training: Training, move: Move) -> None:
        what, _, whom = move.kind.partition(" ")
        if what == "scale":
            self._scale(training, move.workers)
            return
        strike = Strike(what == "kill", whom, 0.0, move.away_s, move.pick)
        if self.cluster.strike(strike):
            self.made[move.kind] += 1
        else:
            self._say(f"{move.kind}: there is none")

    # --- how far it is ---------------------------------------------------------------------------

    def _reach(self, training: Training, step: int) -> bool:
        """Wait until it works on this step; False: it has ended."""
        tail = Tail(training.samples(self.folder))
        moved_s, furthest = time.monotonic(), -1
        while True:
            if tail.step() >= step:
                return True
            if self._ended(training):
                return False
            if tail.lines != furthest:
                moved_s, furthest = time.monotonic(), tail.lines
            if time.monotonic() > moved_s + STUCK_S:
                raise judging.Violation(f"nothing was computed for {STUCK_S:g} s: {self._why()}")
            time.sleep(LOOK_S)  # pause: between two looks, each of which also checks

    def _ended(self, training: Training) -> bool:
        try:
            return self.plane.job(training.name).status.phase.final
        except RetryError:
            return False

    def _why(self) -> str:
        try:
            return "; ".join(
                f"{job.name} {job.status.phase.value}: {job.status.reason}"
                for job in self.plane.jobs().values()
                if not job.status.phase.final
            )
        except HoldfastError as error:
            return str(error)

    # --- telling ---------------------------------------------------------------------------------

    def _note(self, event: Event) -> None:
        if isinstance(event, Fault):
            self._say(f"{event.kind}: {event.what}")

    def _say(self, text: str) -> None:
        self.story.append(f"{time.monotonic() - self._began_s:6.1f} s  {text}")

    def told(self, training: Training) -> str:
        """What was done, and what the control plane decided about it."""
        lines = list(self.story)
        try:
            for entry in self.plane.history(training.name)[-60:]:
                reason = entry.reason.replace("\n", " ")[-240:]
                lines.append(f"  {time.strftime('%H:%M:%S', time.gmtime(entry.at_s))} {reason}")
        except HoldfastError as error:
            lines.append(f"  its history cannot be read: {error}")
        return "\n".join(lines)


class Tail:
    """How far a training is, by its workers' own logs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._step = self.lines = 0

    def step(self) -> int:
        for path in self._folder.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read[path] = self._read.get(path, 0) + len(whole) + len(newline)
            for line in whole.split(b"\n") if whole else ():
                self.lines += 1
                # `"step": 12, …`, without reading all of it
                found = line.partition(b'"step": ')[2].partition(b",")[0]
                self._step = max(self._step, int(found))
        return self._step


def _leader(election: Election) -> str:
    try:
        leader = election.current_leader()
    except HoldfastError:
        return ""
    return leader.name if leader is not None else ""


@contextmanager
def training_cluster(folder: Path, capacities: Mapping[str, float]) -> Iterator[TrainingCluster]:
    """A cluster of real processes; afterwards nothing of it is left running."""
    cluster = ProofCluster(
        folder, "embedded", "folder", 2, dict(capacities), warm=frozenset(capacities)
    )
    with cluster, connect(cluster.address) as session:
        try:
            yield TrainingCluster(folder, cluster, session)
        finally:
            cluster.note = lambda _event: None
