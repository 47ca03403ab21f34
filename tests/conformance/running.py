"""A script alone and on workers, and whether what came of it is what it says."""

from __future__ import annotations

import random
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.faults.members_stage import Worker
from tests.faults.training_stage import Host, TrainingStage

SCRIPTS = Path(__file__).parent / "scripts"
RUN_S = 300.0  # of one script; they take seconds, on cores that many share
_EXPECT = re.compile(r"^# expect: (same or refused|same|refused)(?::[ \t]*(.*))?$", re.MULTILINE)
_LANES = re.compile(r"train\.launch\([^)]*lanes=(\d+)")


@dataclass(frozen=True)
class Script:
    """A script and what it says is to come of it."""

    path: Path
    idea: str
    same: bool
    refused: bool
    words: str
    lanes: int

    @classmethod
    def read(cls, path: Path) -> Script:
        text = path.read_text()
        found = _EXPECT.search(text)
        assert found is not None, f"{path.name} does not say what is to come of it"
        lanes = _LANES.search(text)
        idea = " ".join(text.split('"""')[1].split())
        kind, words = found.group(1), (found.group(2) or "").strip()
        number = int(lanes.group(1)) if lanes else 1
        return cls(path, idea, "same" in kind, "refused" in kind, words, number)


@dataclass(frozen=True)
class Outcome:
    """What came of a run: the digests that it printed, or why it was refused."""

    digests: tuple[str, ...]
    output: str
    failed: bool

    @property
    def refused(self) -> bool:
        """Whether it failed with a sentence of ours that says what to do."""
        return self.failed and "\nfix: " in self.sentence

    @property
    def sentence(self) -> str:
        """What the error itself said: names of files in a traceback do not count. Of an error of
        the script's own, what was noted at it."""
        at = self.output.rfind("\nholdfast.")
        return self.output[at if at >= 0 else self.output.rfind("\nwhy: ") :]


def alone(script: Script, host: Host, folder: Path) -> Outcome:
    """`python script.py`."""
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / "output"
    options = {"script": str(script.path), "folder": str(folder / "work")}
    forked = host.fork({}, output, options)
    status = forked.wait(RUN_S)
    return _outcome([output], failed=status != 0)


def on_workers(
    script: Script, host: Host, folder: Path, workers: int, *, kills: random.Random | None = None
) -> Outcome:
    """The same on so many workers. `kills`: one or two of them die on the way, and others come."""
    with TrainingStage(folder, host, lanes=script.lanes) as stage:
        stage.options = {"script": str(script.path), "folder": str(folder / "work")}
        members = list(range(workers))
        _start(stage, members)
        if not _failed(stage, members):
            stage.move(members, restore=0)
            if kills is not None:
                members = _disturb(stage, members, kills)
            stage.wait(
                "all are at the end, or one has failed",
                lambda: _failed(stage, members) or _at_end(stage, members),
                RUN_S,
            )
        failed = _failed(stage, members)
        if not failed:
            stage.end(stage.step)
        outputs = [worker.output for worker in stage.workers.values()]
        if failed:  # whoever has failed says why; the others wait for it in vain
            ended = [worker for worker in stage.workers.values() if not worker.alive]
            outputs = [
                worker.output for worker in ended if worker.process.poll() != -signal.SIGKILL
            ]
        return _outcome(outputs, failed=failed)


def _start(stage: TrainingStage, numbers: Sequence[int]) -> None:
    for number in numbers:
        stage.workers[number] = Worker(stage, number, stage.command)
    stage.wait(
        "all are ready, or one has failed",
        lambda: _failed(stage, numbers) or all(stage.workers[n].said.get("ready") for n in numbers),
        RUN_S,
    )


def _is_over_or_at(stage: TrainingStage, step: int, numbers: Sequence[int]) -> bool:
    return stage.step >= step or _failed(stage, numbers) or _at_end(stage, numbers)


def _disturb(stage: TrainingStage, members: list[int], chance: random.Random) -> list[int]:
    """Kill one when it has come to some step; another takes its place, or none."""
    for _ in range(chance.randint(1, 2)):
        step = stage.step + chance.randint(1, 6)
        stage.wait(
            f"somebody is at step {step}, or at the end",
            partial(_is_over_or_at, stage, step, tuple(members)),
            RUN_S,
        )
        if _failed(stage, members) or len(members) == 1:
            return members
        victim = chance.choice(members)
        stage.workers[victim].kill()
        members = [number for number in members if number != victim]
        if chance.random() < 0.6:
            new = max(stage.workers) + 1
            _start(stage, [new])
            if _failed(stage, [new]):
                return [*members, new]
            members = [*members, new]
        stage.move(members)
    return members


def _at_end(stage: TrainingStage, numbers: Sequence[int]) -> bool:
    return all(stage.workers[number].said.get("ending") for number in numbers)


def _failed(stage: TrainingStage, numbers: Sequence[int]) -> bool:
    return any(not stage.workers[number].alive for number in numbers)


def _outcome(outputs: Sequence[Path], *, failed: bool) -> Outcome:
    texts = [output.read_text() for output in outputs]
    digests: dict[str, None] = {}
    for text in texts:
        for line in text.splitlines():
            if line.startswith("SHA "):
                digests[line] = None
    return Outcome(tuple(sorted(digests)), "\n".join(texts), failed)


def complaint(script: Script, right: Outcome, found: Outcome, where: str) -> str:
    """What is wrong with what came of it; nothing: it is as the script says."""
    tail = f"\n{found.output[-3000:]}"
    if found.failed:
        if not script.refused:
            return f"{where}: it failed{tail}"
        if not found.refused:
            return f"{where}: it failed without a sentence that says what to do{tail}"
        if script.words.lower() not in found.sentence.lower():
            return f"{where}: it was refused without the words {script.words!r}{tail}"
        return ""
    if not script.same:
        return f"{where}: it was not refused"
    if not found.digests:
        return f"{where}: it printed no digest{tail}"
    if not right.failed and found.digests != right.digests:
        return f"{where}: other weights: {found.digests}, alone {right.digests}"
    return ""
