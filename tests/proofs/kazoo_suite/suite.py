"""Runs kazoo's test files, a few at a time, each with a server of its own."""

from __future__ import annotations

import queue
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from tests.proofs.kazoo_suite import workshop
from tests.servers import port_block

TEST_S = 120
FILE_S = 900
NOT_OURS = ("test_gevent_handler.py", "test_eventlet_handler.py")
NO_TESTS_COLLECTED = 5


class Outcome(NamedTuple):
    """What became of one test. `state` is passed, failed or skipped."""

    test: str
    state: str
    reason: str


def outcomes_of(report: Path) -> list[Outcome]:
    """The outcomes in one of pytest's XML reports."""
    found = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        where = case.get("classname", "")
        where = where[where.rfind(".test_") + 1 :]
        state, reason = "passed", ""
        for child in case:
            if child.tag in ("failure", "error"):
                state, reason = "failed", child.get("message", "")
            elif child.tag == "skipped":
                state, reason = "skipped", child.get("message", "")
        found.append(Outcome(f"{where}.{case.get('name')}", state, " ".join(reason.split())[:200]))
    return found


class Suite:
    """One run over one kind of server."""

    def __init__(self, *, real: bool, jobs: int, keyword: str, say: Callable[[str], None]) -> None:
        self.real = real
        self.jobs = jobs
        self.keyword = keyword
        self.say = say
        self.python = workshop.workshop_python()
        self.folder = workshop.suite_folder(self.python)

    def run(self) -> list[Outcome]:
        """Every test once."""
        files = [one for one in self.folder.glob("test_*.py") if one.name not in NOT_OURS]
        # The longest files first, so that no job ends with the largest one alone.
        files.sort(key=lambda one: one.stat().st_size, reverse=True)
        waiting: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for one in files:
            waiting.put(one)
        found: list[Outcome] = []
        problems: list[BaseException] = []

        def work(number: int) -> None:
            try:
                while not waiting.empty():
                    found.extend(self.run_file(waiting.get_nowait(), self.keyword, number))
            except queue.Empty:
                return
            except BaseException as problem:
                problems.append(problem)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(self.jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if problems:
            raise problems[0]
        return sorted(found)

    def run_file(self, file: Path, keyword: str = "", number: int = 0) -> list[Outcome]:
        """The outcomes of one file's tests; `number`: which ports they have."""
        with tempfile.TemporaryDirectory(prefix="kazoo-suite-") as name:
            folder = Path(name)
            report = folder / "report.xml"
            command = [str(self.python), "-m", "pytest", str(file), "-q", "--tb=short"]
            command += ["-p", "no:cacheprovider", f"--timeout={TEST_S}", f"--junitxml={report}"]
            command += ["-c", str(folder / "pytest.ini"), f"--rootdir={self.folder.parent}"]
            (folder / "pytest.ini").write_text("[pytest]\n")
            if keyword:
                command += ["-k", keyword]
            port = port_block(number)[0]
            done = subprocess.run(
                command,
                cwd=folder,
                env=workshop.environment(folder, self.python, port, self.real),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=FILE_S,
                check=False,
            )
            if done.returncode == NO_TESTS_COLLECTED:
                return []
            if not report.exists():
                raise RuntimeError(f"{file.name}: {done.stdout.decode(errors='replace')[-4_000:]}")
            found = outcomes_of(report)
        passed = sum(one.state == "passed" for one in found)
        self.say(f"{file.name}: {passed} of {len(found)} passed")
        return found
