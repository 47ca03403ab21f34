"""Rounds of start, check, write, kill."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.coordination.embedded.folder import COMPACTING, is_locked, list_folder
from tests.proofs.crash import sabotage
from tests.proofs.crash.audit import Auditor
from tests.proofs.crash.model import Violation
from tests.proofs.crash.tails import tear
from tests.proofs.crash.writer import Writer
from tests.servers import EmbeddedServer
from tests.waiting import eventually

# Small, so that segments are closed and snapshots made several times a second.
SERVER_OPTIONS = ("--snapshot-every", "400", "--segment-bytes", "60000")
BUSY_S_MAX = 0.3
STARTING_S_MAX = 0.4
COMPACTING_S_MAX = 1.0
SNAPSHOT_S_MAX = 120.0
COMPACTING_S = 0.05  # a small snapshot is written in about this time
EXPIRY_S_MAX = 60.0


@dataclass
class Torture:
    """One run; the same seed draws the same requests and moments (not the same interleaving)."""

    folder: Path
    seed: int
    kills: int
    writer_count: int = 5
    torn: bool = False
    sabotaged: str = ""
    say: Callable[[str], None] = print
    tally: Counter[str] = field(default_factory=Counter)
    harmed: bool = False

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.server = EmbeddedServer(self.folder, options=SERVER_OPTIONS)
        self.auditor = Auditor(random.Random(self.seed + 1))
        self.writers = [
            Writer(str(number), random.Random(self.seed * 1_000 + number), self.auditor)
            for number in range(self.writer_count)
        ]

    def run(self) -> Counter[str]:
        """Kill as often as asked; `Violation` at the first promise that is broken."""
        try:
            self._set_up()
            while self.tally["kills"] < self.kills:
                self._round()
                if self.tally["kills"] % 25 == 0:
                    self.say(self.summary())
            self._end()
        finally:
            self.server.kill()
        return self.tally

    def summary(self) -> str:
        count = self.tally
        unknown = sum(writer.unknown for writer in self.writers)
        kept = sum(writer.kept for writer in self.writers)
        return (
            f"{count['kills']} kills ({count['while starting']} while starting,"
            f" {count['during a snapshot']} during a snapshot and"
            f" {count['after a snapshot']} after one),"
            f" {self.recovered_from_snapshots()} recoveries from a snapshot,"
            f" {count['tails torn']} torn tails;"
            f" {self.auditor.acknowledged} acknowledged writes, {unknown} with unknown outcome"
            f" ({kept} had happened), zxid {self.auditor.highest_zxid:#x};"
            f" {sum(writer.returned for writer in self.writers)} sessions found again,"
            f" {sum(writer.closed for writer in self.writers)} closed,"
            f" {len(self.auditor.abandoned)} abandoned"
        )

    def _set_up(self) -> None:
        self.server.start()
        self.auditor.set_up(self.server.port)
        for writer in self.writers:
            writer.set_up(self.server.port)

    def _round(self) -> None:
        if self.server.process is None:
            self._start()
        finding = self.auditor.audit(self.server.port)
        killed = threading.Event()
        with ThreadPoolExecutor(len(self.writers)) as pool:
            port = self.server.port
            work = [pool.submit(writer.work, port, finding, killed) for writer in self.writers]
            try:
                self._await_the_moment()
            finally:
                killed.set()
                self._kill()
        for one in work:
            one.result()

    def _start(self) -> None:
        """Start the server; now and then it is killed before it has come up."""
        while self.draw.random() < 0.2 and self.tally["kills"] < self.kills - 1:
            self.server.launch()
            time.sleep(self.draw.uniform(0, STARTING_S_MAX))  # pause: killed at any moment
            self.tally["while starting"] += 1
            self._kill()
        self._come_up()
        self._harm(sabotage.TO_THE_TREE)

    def _come_up(self) -> None:
        """Start the server; it must come up, whatever the kill before it left."""
        try:
            self.server.start()
        except RuntimeError as error:
            raise Violation(str(error)) from error

    def _await_the_moment(self) -> None:
        """Let the writers work for a while; sometimes until a snapshot is begun, or made. The first
        time until one is made: a short run on a slow machine would see none."""
        time.sleep(self.draw.uniform(0, BUSY_S_MAX))  # pause: the kill comes at any moment
        data, chance = self.server.data, self.draw.random()
        before = list_folder(data).snapshots
        if chance < 0.15 or not self.tally["after a snapshot"]:
            if self._waited(SNAPSHOT_S_MAX, lambda: list_folder(data).snapshots != before):
                self.tally["after a snapshot"] += 1
        elif chance < 0.4 and self._waited(COMPACTING_S_MAX, lambda: is_locked(data / COMPACTING)):
            self.tally["during a snapshot"] += 1
            time.sleep(self.draw.uniform(0, COMPACTING_S))  # pause: killed at any moment

    @staticmethod
    def _waited(most_s: float, condition: Callable[[], bool]) -> bool:
        with suppress(AssertionError):
            return eventually(condition, "the moment", most_s, pause_s=0.002)
        return False

    def recovered_from_snapshots(self) -> int:
        """How many starts of the server began with a snapshot, as its own output says."""
        output = (self.folder / "output.log").read_text(errors="replace")
        return output.count("snapshot='snapshot-")

    def _kill(self) -> None:
        if self.server.process is not None and self.server.process.poll() is not None:
            raise Violation(f"the server ended by itself:\n{self.server.output()}")
        self.server.kill()
        self.tally["kills"] += 1
        if self.torn and (how := tear(self.server.data, self.draw)):
            self.tally["tails torn"] += 1
            self.tally[f"torn: {how}"] += 1
        self._harm(sabotage.TO_THE_FILES)

    def _harm(self, ways: dict[str, Callable[[Torture], bool]]) -> None:
        if not self.harmed and self.sabotaged in ways:
            self.harmed = ways[self.sabotaged](self)

    def _end(self) -> None:
        """Everything once more on a quiet server, before and after a polite end."""
        for _ in range(2):
            self._come_up()
            finding = self.auditor.audit(self.server.port)
            for writer in self.writers:
                writer.verify(self.server.port, finding)
            if self.server.stop() != 0:
                raise Violation(f"the server did not end well:\n{self.server.output()}")
        self._come_up()
        self._await_expiry()
        finding = self.auditor.audit(self.server.port)
        for writer in self.writers:
            writer.verify(self.server.port, finding)
        self.server.stop()

    def _await_expiry(self) -> None:
        """The ephemerals of clients that never came back must go."""
        deadline = time.monotonic() + EXPIRY_S_MAX
        while left := self.auditor.ephemerals_of_the_abandoned(self.server.port):
            if time.monotonic() > deadline:
                raise Violation(f"the abandoned sessions' ephemerals {left} are still there")
            time.sleep(0.1)  # pause: between two looks
