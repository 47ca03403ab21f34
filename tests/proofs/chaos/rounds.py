"""One training after the other while all is disturbed; each is judged when it has ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from holdfast.control.decide.facts import JobRecord
from holdfast.control.store.plane import ControlPlane
from holdfast.coordination import Session
from holdfast.storage import open_store
from holdfast.train.states.checkpoints import restore
from holdfast.wire.errors import Conflict, HoldfastError, RetryError
from tests.proofs.control.checks import FINAL, Violation
from tests.proofs.control.events import Answer, Kept
from tests.proofs.control.watcher import Watcher
from tests.proofs.patience import patiently
from tests.proofs.training.cluster import Tail
from tests.proofs.training.trainings import Training

T = TypeVar("T")
LOOK_S: Final = 0.1
# Without a batch of the training for so long nothing goes on any more.
STUCK_S: Final = 240.0
WORKERS: Final = (1, 4)
STEP_MS: Final = 40


def undisturbed(models: Sequence[str], epochs: int, folder: Path) -> dict[str, str]:
    """The bits of each model, trained in a plain process without a cluster."""
    alone = {model: Training(f"{model}-alone", model, epochs, (1, 1)) for model in models}
    return {model: training.alone(folder) for model, training in alone.items()}


def _read(read: Callable[[], T]) -> T:
    """What is missing stays missing: only the store's silence is waited out."""
    return patiently(read, wrong=(RetryError,))


class Rounds:
    """A thread of its own. `trouble`: what ended it early."""

    def __init__(
        self, session: Session, watcher: Watcher, folder: Path, store: str, models: Sequence[str]
    ) -> None:
        self._plane = ControlPlane(session, "chaos")
        self._blobs = open_store(store)
        self._watcher, self._folder, self._models = watcher, folder, models
        self._right: Mapping[str, str] = {}
        self._epochs = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rounds", daemon=True)
        self.step = 0  # how far the present one is
        self.trainings: list[Training] = []
        self.trouble: BaseException | None = None
        self.steps = self.again = self.done = 0

    def start(self, epochs: int, right: Mapping[str, str]) -> None:
        """Trainings of so many epochs; `right`: the bits that each model must end with."""
        self._epochs, self._right = epochs, right
        self._thread.start()

    def finish(self) -> None:
        """No new one is begun."""
        self._closing.set()

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    @property
    def why(self) -> str:
        """Of the present one, in the system's own words."""
        if not self.trainings:
            return "nothing was submitted"
        status = self._watcher.jobs.get(self.trainings[-1].name)
        return f"{status.job} {status.phase}: {status.reason}" if status else "it was not seen yet"

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                model = self._models[len(self.trainings) % len(self._models)]
                name = f"{model}-{len(self.trainings) + 1}"
                self._play(Training(name, model, self._epochs, WORKERS, step_ms=STEP_MS))
        except BaseException as error:
            self.trouble = error

    def _play(self, training: Training) -> None:
        self.trainings.append(training)
        tail = Tail(training.samples(self._folder))
        patiently(lambda: self._submit(training))
        self.step = 0
        moved_s, lines = time.monotonic(), -1
        while not self._ended(training):
            self.step = tail.step()
            if tail.lines != lines:
                moved_s, lines = time.monotonic(), tail.lines
            if time.monotonic() > moved_s + STUCK_S:
                raise Violation("progress", f"nothing was computed for {STUCK_S:g} s: {self.why}")
            time.sleep(LOOK_S)  # pause: between two looks, each of which also checks
        self._judge(training, patiently(lambda: self._plane.job(training.name)))
        self.steps += training.steps
        self.done += 1

    def _submit(self, training: Training) -> None:
        try:
            self._plane.submit(training.spec(self._folder))
        except Conflict:
            return  # an earlier try had been heard

    def _ended(self, training: Training) -> bool:
        status = self._watcher.jobs.get(training.name)
        return status is not None and status.phase in FINAL

    def _judge(self, training: Training, job: JobRecord) -> None:
        note: Callable[..., None] = self._watcher.note
        for one in job.checkpoints:
            trouble = ""
            try:
                _read(lambda one=one: restore(self._blobs, one.manifest, training.name, one.step))  # type: ignore[misc]
            except HoldfastError as error:
                trouble = str(error)
            note(Kept(training.name, one.step, one.manifest, trouble))
        phase = job.status.phase.value
        found = job.status.reason
        if phase == "succeeded":
            found = _read(lambda: training.bits_of(job, self._blobs))
        right = {"bits": self._right[training.model]}
        note(
            Answer(training.name, phase, training.steps, job.committed_step, {"bits": found}, right)
        )
        if {"bits": found} != right:
            raise Violation("5", f"{training.name} {phase}: {found}, not {right['bits']}")
        self.again += training.judge_samples(self._folder)
