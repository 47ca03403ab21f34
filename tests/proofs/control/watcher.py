"""Looks at a cluster from outside, all the time, and writes down what it sees.

It reads znodes with a plain ZooKeeper client, journals and logs from the agents' folders, and
processes from /proc: nothing of what is under test tells it anything but these. Several nodes count
as one moment only if two readings in a row are the same.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoAuthError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from holdfast.control.store import codec
from holdfast.wire.history import entries_from
from tests.proofs.control.checks import FINAL
from tests.proofs.control.events import (
    Commit,
    Decision,
    Event,
    Freed,
    Placed,
    Process,
    Status,
    Term,
    View,
    to_line,
)
from tests.proofs.control.journals import Journals
from tests.proofs.control.processes import Found, Traces

LOOK_S: Final = 0.05
READ_S: Final = 3.0
# A client that sees nothing for so long is replaced.
BLIND_S: Final = 5.0
JOBS: Final = "/holdfast/jobs"
NODES: Final = "/holdfast/nodes"
TERM: Final = "/holdfast/leader/term"


class Node(NamedTuple):
    """A node as it was read; `changed` is the plane's number of its last write."""

    data: bytes
    version: int
    created: int
    changed: int


class Watcher:
    """Threads of their own: one for the plane, one for the machines."""

    def __init__(
        self, hosts: str, credential: str, traces: Mapping[str, Traces], folder: Path
    ) -> None:
        """`credential` is shown to the plane, which is closed to whoever does not have it."""
        self.events: list[Event] = []
        self.gaps = 0  # views that were replaced before they were seen
        self.troubles: list[BaseException] = []
        self.leader = ""  # the name of who took the last term
        self.jobs: dict[str, Status] = {}
        self.committed: dict[str, int] = {}
        self._traces = traces
        self._archive = folder / "worker-logs"
        self._archive.mkdir(parents=True, exist_ok=True)
        self._record = (folder / "events.jsonl").open("a")
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._hosts, self._credential = hosts, credential
        self._client = _client(hosts, credential)
        self._read_s = time.monotonic()  # when the plane last answered
        self._seen: dict[str, int] = {}  # path -> the last write of it that was noted
        self._over: set[str] = set()  # jobs that have ended, and of which all is noted
        self._views: dict[str, int] = {}
        self._pages: dict[str, tuple[int, int]] = {}  # job -> the last page and index noted
        self._placed: dict[
            tuple[str, int], tuple[str, int]
        ] = {}  # worker -> node, its node's birth
        self._births: dict[str, int] = {}  # node -> when its node in the plane was made
        self._running: dict[tuple[str, int], tuple[str, Found]] = {}
        self._journals = Journals(traces, self.note)
        loops = (self._plane, self._machines)
        self._threads = [threading.Thread(target=self._guarded, args=(loop,)) for loop in loops]

    def start(self) -> None:
        self._client.start(timeout=60)
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._closed.set()
        for thread in self._threads:
            thread.join(60)
        self._client.stop()
        self._client.close()
        self._look_at_machines()
        self._record.close()

    def note(self, event: Event) -> None:
        with self._lock:
            self.events.append(event)
            self._record.write(to_line(event) + "\n")
            self._record.flush()

    def _guarded(self, loop: Callable[[], None]) -> None:
        try:
            while not self._closed.wait(LOOK_S):
                loop()
        except BaseException as error:
            self.troubles.append(error)
            raise

    # --- the plane --------------------------------------------------------------------------------

    def _plane(self) -> None:
        try:
            self._look_at_plane()
        except NoAuthError:
            raise  # who is not let in now never will be, and would see nothing to the end
        except (KazooException, KazooTimeoutError):
            self._closed.wait(0.2)  # a server was killed: the client comes back by itself
            if time.monotonic() > self._read_s + BLIND_S:
                self._connect_again()  # or it does not: kazoo's threads may die of what they see
        else:
            self._read_s = time.monotonic()

    def _connect_again(self) -> None:
        self._client.stop()
        with suppress(KazooException, KazooTimeoutError):
            self._client.close()
        self._client = _client(self._hosts, self._credential)
        with suppress(KazooTimeoutError):
            self._client.start(timeout=BLIND_S)
        self._read_s = time.monotonic()

    def _look_at_plane(self) -> None:
        term = self._read([TERM]).get(TERM)
        if term is not None and self._is_new(TERM, term) and term.data:
            taken = json.loads(term.data)
            self.leader = str(taken["name"])
            self.note(Term(time.time(), term.version, str(taken["candidate"])))
        jobs = [job for job in self._children(JOBS) if job not in self._over]
        ended = {job for job in jobs if job in self.jobs and self.jobs[job].phase in FINAL}
        for job in jobs:
            self._look_at_job(job)
        if self._look_at_placements(jobs):
            # They had ended before all of this was read: nothing of them changes any more.
            self._over |= ended

    def _look_at_job(self, job: str) -> None:
        top = f"{JOBS}/{job}"
        steps = [f"{top}/checkpoints/{step}" for step in self._children(f"{top}/checkpoints")]
        new = [path for path in steps if path not in self._seen]
        # The view before the commit records: what it begins from was committed before it.
        read = self._read([f"{top}/view", f"{top}/state"])
        for path, node in {**read, **self._read(new)}.items():
            if not self._is_new(path, node):
                continue
            if path.endswith("/view"):
                self._note_view(job, path, node)
            elif path.endswith("/state"):
                self._note_state(job, path, node)
            else:
                one = codec.checkpoint_from(path, node.data)
                self.committed[job] = max(one.step, self.committed.get(job, 0))
                self.note(Commit(time.time(), job, one.step, one.term, one.manifest, node.created))
        self._look_at_history(job)

    def _note_view(self, job: str, path: str, node: Node) -> None:
        view = codec.view_from(path, node.data)
        lanes = {str(worker): list(lanes) for worker, lanes in view.lanes.items()}
        self.gaps += max(0, view.number - self._views.get(job, 0) - 1)
        self._views[job] = view.number
        self.note(
            View(
                time.time(), job, view.number, lanes, view.restore_step, node.version, node.changed
            )
        )

    def _note_state(self, job: str, path: str, node: Node) -> None:
        state = codec.state_from(path, node.data)
        phase, reason = state.status.phase.value, state.status.reason
        status = Status(time.time(), job, phase, reason, state.next_worker, state.attempts)
        self.jobs[job] = status
        self.note(status)

    def _look_at_history(self, job: str) -> None:
        top = f"{JOBS}/{job}/history"
        last_page, last_index = self._pages.get(job, (-1, -1))
        names = [name for name in sorted(self._children(top)) if name.isdigit()]
        pages = self._read([f"{top}/{name}" for name in names if int(name) >= last_page])
        for path in sorted(pages):
            page = int(path.rpartition("/")[2])
            for index, entry in enumerate(entries_from(path, pages[path].data)):
                if (page, index) <= (last_page, last_index):
                    continue
                last_page, last_index = page, index
                what, why = entry.what, entry.reason
                self.note(Decision(entry.at_s, job, page, index, entry.term, what, why))
        self._pages[job] = (last_page, last_index)

    def _look_at_placements(self, jobs: list[str]) -> bool:
        """Placements of all jobs, with the birth of each machine's node, if it is one moment."""
        first = self._placements(jobs)
        if first != self._placements(jobs):
            return False
        births = {
            path.rpartition("/")[2]: node.created
            for path, node in first.items()
            if path.startswith(f"{NODES}/")
        }
        placed = [
            (path.split("/")[3], placement.worker, placement.node)
            for path, node in first.items()
            if path.startswith(f"{JOBS}/")
            for placement in codec.placements_from(path, node.data)
        ]
        now = {(job, worker): node for job, worker, node in placed}
        if now.keys() != self._placed.keys():
            self.note(Placed(time.time(), [list(one) for one in sorted(placed)]))
        for key in self._placed.keys() - now.keys():
            where, birth = self._placed.pop(key)
            alive = key in self._traces[where].workers()
            lost = births.get(where) != birth or self._births.get(where) != birth
            self.note(Freed(time.time(), *key, where, alive, lost))
        for key, where in now.items():
            self._placed.setdefault(key, (where, births.get(where, 0)))
        self._births = births
        return True

    def _placements(self, jobs: list[str]) -> dict[str, Node]:
        paths = [f"{NODES}/{name}" for name in self._children(NODES)]
        for job in jobs:
            top = f"{JOBS}/{job}/placements"
            paths += [f"{top}/{page}" for page in self._children(top)]
        return self._read(paths)

    def _read(self, paths: list[str]) -> dict[str, Node]:
        asked = [(path, self._client.get_async(path)) for path in paths]
        found = {}
        for path, answer in asked:
            with suppress(NoNodeError):
                data, stat = answer.get(timeout=READ_S)
                found[path] = Node(data, stat.version, stat.czxid, stat.mzxid)
        return found

    def _children(self, path: str) -> list[str]:
        try:
            names: list[str] = self._client.get_children_async(path).get(timeout=READ_S)
        except NoNodeError:
            return []
        return names

    def _is_new(self, path: str, node: Node) -> bool:
        if self._seen.get(path) == node.changed:
            return False
        self._seen[path] = node.changed
        return True

    # --- the machines -----------------------------------------------------------------------------

    def _machines(self) -> None:
        self._look_at_machines()

    def _look_at_machines(self) -> None:
        for node, traces in self._traces.items():
            self._keep_logs(node, traces.folder / "logs")
            workers = traces.workers()
            # Those that have gone first: their room may have been given to the new ones.
            for key, (where, found) in list(self._running.items()):
                if where == node and not found.alive:
                    del self._running[key]
                    self.note(_process(node, key, found, alive=False))
            for key, found in workers.items():
                known = self._running.get(key)
                if known is None or known[1].pid != found.pid or known[1].ticks != found.ticks:
                    self._running[key] = (node, found)
                    self.note(_process(node, key, found, alive=True))
        self._journals.look()

    def _keep_logs(self, node: str, folder: Path) -> None:
        """A second name for each log of a worker: the agent removes old ones, and rotates."""
        with suppress(OSError):
            for log in [*folder.glob("*/out.log"), *folder.glob("*/err.log")]:
                number = log.stat().st_ino
                name = f"{node}-{log.parent.name}-{number}-{log.name}"
                with suppress(FileExistsError, FileNotFoundError):
                    if not (self._archive / name).exists():
                        os.link(log, self._archive / name)


def _client(hosts: str, credential: str) -> KazooClient:
    quiet = logging.getLogger("tests.proofs.control.watcher.kazoo")
    quiet.setLevel(logging.CRITICAL)  # servers are killed all the time
    shown = [("digest", credential)]
    return KazooClient(hosts, timeout=10.0, logger=quiet, auth_data=shown)


def _process(node: str, key: tuple[str, int], found: Found, *, alive: bool) -> Process:
    return Process(time.time(), node, *key, found.pid, found.ticks, alive)


def worker_logs(folder: Path) -> list[tuple[str, int, Path]]:
    """Of each worker whose output was kept: job, number, and the file."""
    found = []
    for path in sorted((folder / "worker-logs").glob("*-out.log")):
        name = path.name.partition("-")[2].rsplit("-", 2)[0]
        job, _, number = name.rpartition(".")
        found.append((job, int(number), path))
    return found
