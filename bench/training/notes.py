"""What workers have noted, read while they run, and the clocks of a failure computed from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Done:
    """A step was complete at a worker."""

    at_s: float
    pid: int
    step: int
    count: int  # samples of the step, over all workers
    cpu_s: float  # that this process has used so far, in all its threads


@dataclass(frozen=True, slots=True)
class Last:
    """What a worker said at its end."""

    at_s: float
    pid: int
    digest: str
    peak_kb: int


@dataclass
class Reader:
    """All notes below a folder so far."""

    folder: Path
    done: list[Done] = field(default_factory=list)
    noticed: list[tuple[float, int]] = field(default_factory=list)  # when, who
    last: list[Last] = field(default_factory=list)
    _read: dict[Path, int] = field(default_factory=dict)

    def look(self) -> None:
        """Read what has come since the last look."""
        for path in sorted(self.folder.glob("*.notes")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            text = text[: text.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(text)
            for line in text.decode().splitlines():
                self._take(int(path.stem), line.split())
        self.done.sort(key=lambda one: one.at_s)

    def _take(self, pid: int, words: list[str]) -> None:
        at_s = float(words[0])
        if words[1] == "!":
            self.noticed.append((at_s, pid))
        elif words[1] == "=":
            self.last.append(Last(at_s, pid, words[2], int(words[3])))
        else:
            self.done.append(Done(at_s, pid, int(words[1]), int(words[2]), float(words[3])))

    @property
    def step(self) -> int:
        """The furthest step that anyone has completed."""
        return max((one.step for one in self.done), default=0)

    def since(self, at_s: float) -> list[Done]:
        return [one for one in self.done if one.at_s > at_s]

    def living(self, since_s: float = 0.0) -> list[int]:
        """Workers that have completed a step since then, and live."""
        return sorted({one.pid for one in self.done if one.at_s > since_s and lives(one.pid)})


def lives(pid: int) -> bool:
    """Not one that has ended and is only still in the table."""
    return _stat(pid)[:1] not in ([], ["Z"], ["X"])


def parent_of(pid: int) -> int | None:
    found = _stat(pid)
    return int(found[1]) if found else None


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


@dataclass(frozen=True, slots=True)
class Clocks:
    """What a failure has cost. All from the moment of the kill, in seconds, unless said."""

    noticed_s: float | None  # until the first survivor noticed; None: nobody did, or nobody lived
    stall_s: float  # the longest time between two completed steps, until full size
    full_s: float | None  # until as many workers as before had completed a step
    steps_lost: int  # completed before, and to be done again


def clocks(reader: Reader, killed_s: float, full_s: float | None, until_s: float) -> Clocks:
    """`full_s`: when the size was full again, None if it never shrank. `until_s`: how far this
    failure is looked at, at least."""
    before = [one for one in reader.done if one.at_s <= killed_s]
    end_s = max(full_s or 0.0, until_s)
    after = [one for one in reader.done if killed_s < one.at_s <= end_s]
    best = max(one.step for one in before)
    times = [before[-1].at_s, *(one.at_s for one in after), end_s]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    noticed = [at_s - killed_s for at_s, _ in reader.noticed if killed_s <= at_s <= end_s]
    # A survivor goes on behind its own last step; whoever is new, behind the furthest one.
    expected = {one.pid: one.step + 1 for one in before}
    lost = 0
    for one in after:
        lost = max(lost, expected.get(one.pid, best + 1) - one.step)
        expected[one.pid] = one.step + 1
    return Clocks(
        min(noticed, default=None),
        max(gaps, default=0.0),
        None if full_s is None else full_s - killed_s,
        lost,
    )


def useful(done: Sequence[Done]) -> int:
    """Samples of all steps, each step once: what was done again is counted once."""
    return sum({one.step: one.count for one in done}.values())
