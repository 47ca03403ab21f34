"""One contestant's run with failures: wait for it, kill in it, and let it end."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.training.contestants import ROOT, SCRIPTS, Contestant, Ours
from bench.training.notes import Clocks, Reader, clocks

POLL_S = 0.02
# After the kill of a helper workers may go on as if nothing were: so long is looked at at least.
WINDOW_S = 5.0
# From the word that a step is the last one until it is: more than a look at a file takes.
LAST_S = 3.0


Ready = Callable[[Reader], bool]


class Broken(Exception):
    """The contestant does not go on. That is its result."""


@dataclass
class Outcome:
    """What a run has shown."""

    name: str
    kind: str
    workers: int
    first_s: float | None = None  # from the command to the first completed step
    clocks: list[Clocks] = field(default_factory=list)
    broken: str = ""
    steps: int = 0
    same: bool | None = None  # the final weights are those of an undisturbed run; None: not looked

    @property
    def lost(self) -> int:
        return sum(one.steps_lost for one in self.clocks)


def await_(contestant: Contestant, what: str, ready: Ready, patience_s: float) -> None:
    deadline_s = time.monotonic() + patience_s
    while True:
        contestant.mind()
        contestant.notes.look()
        if ready(contestant.notes):
            return
        if contestant.ended:
            raise Broken(f"{what}: all its processes have ended; {last_error(contestant.log)}")
        if time.monotonic() > deadline_s:
            raise Broken(f"{what}: not within {patience_s:g} s; {last_error(contestant.log)}")
        time.sleep(POLL_S)


def is_full(contestant: Contestant, since_s: float, without: int = 0) -> bool:
    living = contestant.notes.living(since_s)
    return sum(pid != without and contestant.owned(pid) for pid in living) >= contestant.workers


def began(contestant: Contestant, outcome: Outcome, patience_s: float) -> None:
    """Wait for the first step, and then for all workers."""
    await_(contestant, "the first step", lambda notes: bool(notes.done), patience_s)
    outcome.first_s = contestant.notes.done[0].at_s - contestant.begun_s
    await_(contestant, "all workers", lambda _: is_full(contestant, 0.0), patience_s)


def victim_of(contestant: Contestant, kind: str, chance: random.Random) -> int:
    if kind == "worker":
        living = [pid for pid in contestant.notes.living() if contestant.owned(pid)]
        if not living:
            raise Broken("no worker lives that could be killed")
        return chance.choice(living)
    found = contestant.helper(kind)
    if found is None:
        raise Broken(f"it has no {kind}")
    return found


def strike(contestant: Contestant, kind: str, chance: random.Random, patience_s: float) -> Clocks:
    """Kill one, wait until all is as before, and read the clocks."""
    victim = victim_of(contestant, kind, chance)
    killed_s = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    if kind == "worker":
        await_(
            contestant,
            "back to full size",
            lambda _: is_full(contestant, killed_s, victim),
            patience_s,
        )
        return clocks(contestant.notes, killed_s, full_at(contestant, killed_s, victim), 0.0)
    await_(
        contestant,
        f"another {kind}, and all workers",
        lambda _: (
            time.monotonic() > killed_s + WINDOW_S
            and contestant.helper(kind) not in (None, victim)
            and is_full(contestant, killed_s)
        ),
        patience_s,
    )
    until_s = max(killed_s + WINDOW_S, full_at(contestant, killed_s, victim))
    return clocks(contestant.notes, killed_s, None, until_s)


def full_at(contestant: Contestant, killed_s: float, victim: int) -> float:
    """When the last of the workers that live now had its first step since the kill."""
    first: dict[int, float] = {}
    living = set(contestant.notes.living(killed_s)) - {victim}
    for one in contestant.notes.since(killed_s):
        if one.pid in living and contestant.owned(one.pid):
            first.setdefault(one.pid, one.at_s)
    return sorted(first.values())[contestant.workers - 1]


def end(contestant: Contestant, outcome: Outcome, patience_s: float) -> str:
    """Let it end by itself; the digest on which all its workers agree."""
    notes = contestant.notes
    notes.look()
    recent = {one.step for one in notes.since(time.monotonic() - 2.0)}
    outcome.steps = notes.step + max(20, round(len(recent) / 2.0 * LAST_S))
    contestant.say_end(outcome.steps)
    await_(contestant, "the end", lambda notes: len(notes.last) >= contestant.workers, patience_s)
    digests = {one.digest for one in notes.last}
    return digests.pop() if len(digests) == 1 else "they differ"


def undisturbed(contestant: Contestant, outcome: Outcome, patience_s: float) -> str:
    """The digest of a run of as many steps in which nobody is killed: ours on one worker."""
    folder = contestant.folder.with_name(contestant.folder.name + "-calm")
    words = [*contestant.words, "--steps", str(outcome.steps)]
    if isinstance(contestant, Ours):
        command = [sys.executable, str(SCRIPTS / "ours.py"), "--notes", str(folder / "notes")]
        command += ["--lanes", str(contestant.workers), *words]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        subprocess.run(command, env=environment, check=True, timeout=patience_s)
        calm = Reader(folder / "notes")
        calm.look()
        return calm.last[0].digest
    again = type(contestant)(folder, contestant.workers, words)
    try:
        await_(again, "undisturbed", lambda notes: len(notes.last) == again.workers, patience_s)
        return again.notes.last[0].digest
    finally:
        again.close()


def last_error(log: Path) -> str:
    """The last line of its log that looks like an error."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    found = [line for line in lines if re.search(r"\w*(Error|Exception|panicked)\b", line)]
    return re.sub(r"\s+", " ", (found or lines or [""])[-1]).strip()[-160:]
