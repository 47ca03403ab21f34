"""A worker is killed, then the leader, then everything: and the model is the same, bit for bit.

    make demo
    python examples/training_demo.py [FOLDER] [--epochs N]

`digits.py` is trained twice at the same time: by one plain process that nobody disturbs, and by
four workers of a cluster in which more and more is killed. All of it is real: processes, sockets,
files, SIGKILL. At the end the hashes are compared; the exit code is 0 only if every claim held.
What it writes is in FOLDER, `.demo/training` if none is given.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

import ctrl_c
from rich.console import Console
from rich.table import Table
from rich.text import Text
from training_alone import STEPS, Alone, DemoError
from training_crew import (
    COORDINATORS,
    CRAWL_S,
    EXAMPLES,
    JOB,
    NODE,
    RUN_S,
    STROLL_S,
    WORKERS,
    Crew,
    Eyes,
    end_former,
    opened_eyes,
)
from training_screen import Screen

from holdfast.cli.run.progress import RunProgress, StepRate
from holdfast.control.decide.facts import Phase, WorkerPhase
from holdfast.control.store.plane import ControlPlane
from holdfast.coordination import Session
from holdfast.models.records import WEIGHTS
from holdfast.models.registry import Registry
from holdfast.train.states.checkpoints import restore
from holdfast.train.states.state import TrainingState
from holdfast.wire.errors import HoldfastError

DEFAULT_FOLDER: Final = EXAMPLES.parent / ".demo" / "training"
NAMES: Final = {"coordination": "server", **{one: one for one in COORDINATORS}, NODE: "agent"}
PATIENCE_S: Final = 300.0


class Demo:
    """The acts, in order, and the claims that they proved or not."""

    def __init__(self, screen: Screen, folder: Path, epochs: int) -> None:
        self.screen = screen
        self.epochs = epochs
        self.total = epochs * STEPS
        self.crew = Crew(folder / "cluster")
        self.alone = Alone(folder / "alone", epochs)
        self.claims: list[tuple[bool, str, str]] = []
        self._pace = StepRate()
        self._pause_s = STROLL_S
        self._again_s = 0.0  # when everything was started again

    # --- the acts --------------------------------------------------------------------------------

    def play(self) -> None:
        self.screen.say("python digits.py: one process, 8 lanes; nobody will disturb it")
        self.screen.say("the same with a server, two coordinators, an agent and 4 workers ...")
        self.crew.start()
        with self.crew.cluster.session() as session:
            self.crew.submit(session, self.epochs)
            with opened_eyes(self.crew.cluster, session) as eyes:
                self.begin(eyes)
                self.kill_a_worker(eyes)
                self.kill_the_leader(eyes)
                before = self.wait_for_a_new_commit(eyes)
        self.kill_everything(before)
        with self.crew.cluster.session() as session:
            with opened_eyes(self.crew.cluster, session) as eyes:
                self.come_back(eyes, before)
                self.finish(eyes)
            self.compare(session)

    def begin(self, eyes: Eyes) -> None:
        self.wait(eyes, "four workers train", lambda now: _working(now) == WORKERS)
        self.screen.say(f"four workers train, two lanes each; {self.total} steps are to be made")
        self.wait(eyes, "a part of it is made", lambda now: now.step >= self.total // 10)

    def kill_a_worker(self, eyes: Eyes) -> None:
        before, there = self.look(eyes), self.crew.workers()
        victim = self.crew.kill_a_worker()
        at_s = self.screen.seconds
        self.screen.say(f"kill -9 {victim.pid}: {victim.name} is dead", "bold red")
        number = int(victim.name.split()[1])
        after = self.wait(eyes, "the others go on", lambda now: now.step > before.step + 1)
        took_s = self.screen.seconds - at_s
        self.screen.say(f"three go on after {took_s:.1f} s, now at step {after.step}")
        self.wait(
            eyes,
            "another worker takes its place",
            lambda now: _working(now) == WORKERS and number not in {c.worker for c in now.cells},
        )
        new = max(cell.worker for cell in self.look(eyes).cells)
        back_s = self.screen.seconds - at_s
        others = {one: pid for one, pid in there.items() if pid != victim.pid}
        self.claim(
            after.step > before.step and others.items() <= self.crew.workers().items(),
            "a worker was killed: the others went on",
            f"next step after {took_s:.1f} s, worker {new} in its place after {back_s:.1f} s",
        )

    def kill_the_leader(self, eyes: Eyes) -> None:
        self.wait(eyes, "a quarter of it is made", lambda now: now.step >= self.total // 4)
        leader = eyes.leader()
        if leader is None:
            raise DemoError("nobody leads")
        before, there = self.look(eyes), self.crew.workers()
        victim = self.crew.kill(leader.name)
        at_s = self.screen.seconds
        self.screen.say(f"kill -9 {victim.pid}: {victim.name}, which led, is dead", "bold red")

        def succeeded(now: RunProgress) -> bool:
            found = eyes.leader()
            return found is not None and found.term > leader.term and now.step > before.step + 1

        after = self.wait(eyes, "the standby leads", succeeded)
        took_s = self.screen.seconds - at_s
        found = eyes.leader() or leader
        made = after.step - before.step
        self.screen.say(f"{found.name} leads after {took_s:.1f} s, in term {found.term}")
        self.claim(
            found.term > leader.term and there.items() <= self.crew.workers().items(),
            "the leader was killed: no worker noticed",
            f"they made {made} steps until another one led",
        )
        self.crew.start()

    def wait_for_a_new_commit(self, eyes: Eyes) -> RunProgress:
        """The next act is no feat when the checkpoint is a moment old, and none when there is
        little left to do."""
        first = self.look(eyes).committed_step or 0
        self.wait(eyes, "the killed one is back", lambda _now: set(NAMES) <= set(self.crew.names()))
        return self.wait(
            eyes,
            "the new leader has committed, and some steps were made since",
            lambda now: first < (now.committed_step or 0) <= now.step - 8,
        )

    def kill_everything(self, before: RunProgress) -> None:
        struck = self.crew.kill_everything()
        self.screen.alive, self.screen.leads, self.screen.together = (), "", None
        self.screen.say(
            f"kill -9 of all {len(struck)}: server, coordinators, agent, workers", "bold red"
        )
        self.claim(
            not self.crew.names() and not self.crew.workers(),
            "everything was killed: nothing runs",
            f"{len(NAMES)} of the cluster, {len(struck) - len(NAMES)} workers",
        )
        self.screen.say(f"what is left: a folder, and in it step {before.committed_step}")
        self._again_s = self.screen.seconds
        self.crew.start()
        self.screen.say("everything is started again ...")

    def come_back(self, eyes: Eyes, before: RunProgress) -> None:
        self._pace = StepRate()
        committed = before.committed_step or 0
        after = self.wait(
            eyes,
            "it trains again",
            lambda now: _working(now) > 0 and _furthest(now) > committed,
        )
        took_s = self.screen.seconds - self._again_s
        again = max(0, before.step - committed)
        self.claim(
            committed > 0 and (after.committed_step or 0) >= committed,
            "it goes on from the last commit",
            f"step {committed}, {again} steps made again; it took {took_s:.1f} s",
        )

    def finish(self, eyes: Eyes) -> None:
        if not self.look(eyes).phase.final:
            self.pace(eyes, RUN_S)
        now = self.wait(eyes, "the job ends", lambda now: now.phase.final)
        if now.phase is not Phase.SUCCEEDED:
            raise DemoError(f"the job has {now.phase.value}: {now.reason}")
        self.screen.say(f"the cluster is done: step {now.step}")
        if not self.alone.done():
            self.screen.say("the process alone still has to come to its end ...")
        until_s = time.monotonic() + PATIENCE_S
        while not self.alone.done():
            if time.monotonic() > until_s:
                raise DemoError(f"the undisturbed run does not end within {PATIENCE_S:g} s")
            self.look(eyes)
            ctrl_c.pause(0.1)

    def compare(self, session: Session) -> None:
        job = ControlPlane(session).job(JOB)
        blobs = self.crew.cluster.blobs()
        last = job.checkpoints[-1]
        state = restore(blobs, last.manifest, JOB, last.step)
        self.weights = (
            _sha256((self.alone.folder / "digits.safetensors").read_bytes()),
            _sha256(
                blobs.get(Registry(session, blobs, JOB).version("digits", 1).files[WEIGHTS].key)
            ),
        )
        self.states = (_bits(self.alone.state()), _bits(state))
        self.accuracies = (_accuracy(self.alone.words()), _accuracy(self.crew.words()))
        self.claim(
            self.weights[0] == self.weights[1],
            "the weights are the same, bit for bit",
            f"SHA-256 {self.weights[1][:16]}…",
        )
        self.claim(
            self.states[0] == self.states[1],
            "so is the optimizer's state, with all else of step " + str(last.step),
            f"SHA-256 {self.states[1][:16]}…",
        )

    # --- what the acts share ---------------------------------------------------------------------

    def look(self, eyes: Eyes) -> RunProgress:
        self.alone.done()
        picture: RunProgress = replace(eyes.picture(self._pace), total=self.total)
        leader = eyes.leader()
        self.screen.together, self.screen.alone = picture, self.alone.picture()
        self.screen.leads = leader.name if leader is not None else ""
        self.screen.alive = tuple(self.crew.names())
        self.screen.draw()
        return picture

    def wait(self, eyes: Eyes, what: str, there: Callable[[RunProgress], bool]) -> RunProgress:
        """Show how it goes until it has come so far; the picture of that moment."""
        until_s = time.monotonic() + PATIENCE_S
        while True:
            picture = self.look(eyes)
            if there(picture):
                return picture
            if picture.phase.final:
                ended = f"the job has {picture.phase.value} too early: {what}"
                raise DemoError(f"{ended}; give it more to do (--epochs {2 * self.epochs})")
            if time.monotonic() > until_s:
                raise DemoError(f"not within {PATIENCE_S:g} s: {what} ({picture.reason})")
            if self._pause_s == STROLL_S and picture.step > self.total // 2:
                self.pace(eyes, CRAWL_S)  # it must not be done before all acts are over
            ctrl_c.pause(0.1)

    def pace(self, eyes: Eyes, pause_s: float) -> None:
        self.crew.pace(eyes.session, pause_s)
        self._pause_s = pause_s

    def claim(self, held: bool, what: str, seen: str) -> None:
        ctrl_c.check()
        self.claims.append((held, what, seen))
        self.screen.say(f"{'✔' if held else '✘'} {what}: {seen}", "green" if held else "bold red")

    def end(self) -> None:
        self.alone.end()
        self.crew.end()

    def summary(self) -> Table:
        grid = Table(box=None, padding=(0, 3, 0, 0))
        for column in ("", "accuracy", "SHA-256 of the weights"):
            grid.add_column(column, header_style="dim", overflow="fold")
        names = ("one process, left alone", "4 workers, killed on the way")
        same = self.weights[0] == self.weights[1]
        for name, accuracy, digest in zip(names, self.accuracies, self.weights, strict=True):
            grid.add_row(name, accuracy, Text(digest, "bold green" if same else "bold red"))
        return grid


def _working(picture: RunProgress) -> int:
    """Workers that hold lanes and a state."""
    running = (WorkerPhase.RUNNING, True)
    cells = [(cell.phase, cell.step is not None) for cell in picture.cells if cell.lanes]
    return sum(cell == running for cell in cells)


def _furthest(picture: RunProgress) -> int:
    return max((cell.step or 0 for cell in picture.cells), default=0)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _bits(state: TrainingState) -> str:
    """Of all tensors: weights, buffers, the optimizer's. The notes beside them (where the run was,
    under which name) are no part of it."""
    return TrainingState(state.step, state.entries).digest().removeprefix("sha256:")


def _accuracy(words: Iterable[str]) -> str:
    said = [line for line in words if line.startswith("accuracy")]
    return said[-1].split()[1] if said else "not told"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT_FOLDER)
    parser.add_argument("--epochs", type=int, default=30)
    options = parser.parse_args()
    console = Console(highlight=False)
    folder = options.folder.absolute()
    with ExitStack() as stack:
        demo: Demo | None = None
        try:
            for name in ("cluster", "alone"):
                _remove(folder / name)
            screen = Screen(console, NAMES)
            demo = Demo(screen, folder, options.epochs)
            stack.callback(demo.end)
            with screen:
                demo.play()
        except KeyboardInterrupt:
            stack.close()
            console.print("interrupted; everything that was started has ended")
            return 130
        except (DemoError, HoldfastError) as error:
            console.print(f"[bold red]the demo failed[/] {error}", markup=True)
            console.print(f"  what it left: {folder}")
            return 1
        console.print()
        console.print(demo.summary())
    good = all(held for held, _, _ in demo.claims)
    console.print()
    if good:
        console.print("[bold green]The same bits.[/] Nothing is left running. Next:")
        console.print("  .venv/bin/holdfast run examples/digits.py --workers 4 --lanes 8")
    else:
        console.print("[bold red]Not every claim held; see above.[/]")
    return 0 if good else 1


def _remove(folder: Path) -> None:
    end_former(folder)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    with ctrl_c.taken():
        sys.exit(main())
