"""The watcher of the control proof sees a closed plane, or says that it does not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kazoo.exceptions import NoAuthError

from holdfast.control.store.plane import ControlPlane
from holdfast.coordination import access, connect
from tests.proofs.control.counting import Counting
from tests.proofs.control.watcher import Watcher
from tests.proofs.patience import PATIENCE_S
from tests.servers import EmbeddedServer
from tests.waiting import eventually

JOB = Counting("counting", lanes=2, workers=(1, 1), steps=1, step_ms=1, seed=1)


@contextmanager
def watching(tmp_path: Path, guess: str = "") -> Iterator[Watcher]:
    """A watcher of a plane that is closed and holds a job; it shows a guess, or what opens it."""
    with EmbeddedServer(tmp_path, is_open=False) as server:
        secret = server.data / access.NAME
        with connect(f"zk://{server.hosts}?secret_file={secret}") as session:
            ControlPlane(session).submit(JOB.spec())
        shown = guess or access.read(secret).credential
        watcher = Watcher(server.hosts, shown, {}, tmp_path)
        watcher.start()
        try:
            yield watcher
        finally:
            watcher.close()


def test_the_watcher_sees_the_jobs_of_a_plane_that_is_closed(tmp_path: Path) -> None:
    with watching(tmp_path) as watcher:
        eventually(lambda: JOB.name in watcher.jobs, "it sees the job", PATIENCE_S)
        assert watcher.troubles == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_watcher_that_is_not_let_in_says_so_instead_of_seeing_nothing(tmp_path: Path) -> None:
    with watching(tmp_path, guess="holdfast:guessed") as watcher:
        eventually(lambda: watcher.troubles, "it says that it sees nothing", PATIENCE_S)
        assert isinstance(watcher.troubles[0], NoAuthError)
