"""A stage with its watcher and a session of a user, begun and ended together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from holdfast.coordination import Session, connect
from tests.proofs.control.stage import Stage
from tests.proofs.control.watcher import Watcher


@dataclass
class Scene:
    """What a test plays with."""

    stage: Stage
    watcher: Watcher
    session: Session


@contextmanager
def played(stage: Stage) -> Iterator[Scene]:
    """Everything runs within; afterwards nothing is left running, and the watcher has it all."""
    with stage, connect(stage.address) as session:
        watcher = Watcher(stage.plane.hosts, stage.credential, stage.traces, stage.folder)
        stage.note = watcher.note
        stage.leading = lambda: watcher.leader
        watcher.start()
        try:
            yield Scene(stage, watcher, session)
        finally:
            stage.note = lambda _event: None
            watcher.close()
