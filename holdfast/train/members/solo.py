"""A member without a job: a plain `python train.py`. All lanes are here, and nobody else is.

With a folder it also checkpoints: every so many steps and at the end, in the background, in the
same form as a job does. Started again with the same folder it goes on from the last checkpoint.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

from holdfast.storage import Blobs, Part, open_store
from holdfast.storage.manifests import Manifest, write_manifest
from holdfast.system import disk, logs
from holdfast.train.members.membership import Holder
from holdfast.train.members.mesh import Mesh
from holdfast.train.progress import Progress
from holdfast.train.states.checkpoints import Saver, restore
from holdfast.train.states.state import TrainingState
from holdfast.wire.errors import BugError, Corrupt, HoldfastError, Missing, Unavailable
from holdfast.wire.orders import View

# A script without a job checkpoints so often, and waits so long for its last one.
SOLO_EVERY_STEPS: Final = 100
SOLO_SAVE_S: Final = 120.0

log = logs.get(__name__)
_LAST: Final = "last.json"  # its existence is the commit
_FROM_A_COPY: Final = "put it back from a copy, or name another folder to begin anew"


class Solo:
    """The same face as `ViewMember`'s. Nothing here ever raises `PeerLost` or `WorkerLeft`."""

    step: int
    view: View
    mesh: Mesh
    lanes: tuple[int, ...]
    settings: Mapping[str, str]
    unsettled: bool

    def __init__(
        self,
        holder: Holder,
        lanes: int,
        *,
        settings: Mapping[str, str] | None = None,
        folder: Path | None = None,
        every_steps: int = SOLO_EVERY_STEPS,
        job: str = "solo",
        progress: Progress | None = None,
    ) -> None:
        self._holder = holder
        self._job = job
        self._folder = folder
        self._every = every_steps
        self._progress = progress
        self._free = threading.Event()
        self._blobs: Blobs | None = None
        self._saver: Saver | None = None
        if folder is not None:
            self._blobs = open_store(folder)
            self._saver = Saver(self._blobs, self._commit, self._free.set)
        self.step, self.unsettled = 0, False
        self.lanes = tuple(range(lanes))
        self.settings = dict(settings or {})
        self.view = View(1, {0: self.lanes}, restore_step=0)
        self.mesh = Mesh(0, 1, 0, {})

    @property
    def is_shared(self) -> bool:
        return self._folder is not None

    @property
    def is_alone(self) -> bool:
        return True

    @property
    def digest(self) -> str | None:
        return None  # there is nobody to compare it with

    def diverge(self) -> NoReturn:
        raise BugError("somebody differs from nobody")

    def join(self) -> None:
        """Make the state, or take the one of the folder's last checkpoint."""
        last = self._last()
        if last is None or self._blobs is None:
            self._check_new()
            self._holder.fresh()
            return
        step, manifest = last
        try:
            self._holder.adopt(restore(self._blobs, manifest, self._job, step))
        except (Corrupt, Missing) as error:
            raise Corrupt(
                f"the checkpoint of step {step} in {self._folder} cannot be read",
                why=error.sentence,
                fix=_FROM_A_COPY,
            ) from error
        self.step = step
        log.info("goes on from its checkpoint", step=step, folder=str(self._folder))

    def renew(self) -> bool:
        """Nothing can have changed."""
        return False

    def count(self) -> None:
        """See `ViewMember.count`."""
        self.step += 1
        self.unsettled = True

    def boundary(self, metrics: Mapping[str, float] | None = None) -> bool:
        """A step is complete. A checkpoint that is due while one is still being written is left
        out."""
        if not self.unsettled:
            self.count()
        self.unsettled = False
        if self._progress is not None:
            self._progress.step(self.step, metrics or {})
        if self._saver is not None and self.step % self._every == 0 and not self._saver.busy:
            self._save(self._saver)
        return False

    def finish(self) -> None:
        """The last step is complete: checkpoint it, if there is a folder."""
        saver = self._saver
        if saver is not None and self._last_step() != self.step:
            self._wait(saver)
            self._save(saver)
            self._wait(saver)
            if self._last_step() != self.step:
                raise Unavailable(
                    f"step {self.step} is not saved",
                    why=f"the folder {self._folder} does not take it",
                    fix="make room there, and run the script again: it goes on where it is",
                )
        self.close()

    def leave(self) -> NoReturn:
        """Nobody asks it to."""
        raise BugError("a run without a job was asked to leave it")

    def close(self) -> None:
        self.mesh.close()
        if self._progress is not None:
            self._progress.close()
        if self._saver is not None:
            self._saver.close(SOLO_SAVE_S)

    def _save(self, saver: Saver) -> None:
        held = self._holder.state()
        self._free.clear()
        saver.take(self.step, 0, 1, TrainingState(self.step, held.entries, held.notes))

    def _wait(self, saver: Saver) -> None:
        deadline_s = time.monotonic() + SOLO_SAVE_S
        while saver.busy and (left_s := deadline_s - time.monotonic()) > 0:
            # The sign may be that of the share before: it comes a moment after `busy` has ended.
            self._free.clear()
            if saver.busy:
                self._free.wait(left_s)

    def _commit(self, step: int, parts: tuple[Part, ...]) -> None:
        """In the saver's thread: the parts are durable; make them the last checkpoint."""
        assert self._blobs is not None and self._folder is not None
        try:
            manifest = write_manifest(self._blobs, Manifest(self._job, step, 1, {0: parts}))
            record = json.dumps({"step": step, "manifest": manifest})
            disk.replace_durably(self._folder / _LAST, record.encode())
        except (HoldfastError, OSError) as error:
            log.warning("a checkpoint was not committed", step=step, reason=str(error))

    def _check_new(self) -> None:
        """Nothing says which checkpoint is the last. One may lie there, of a process that was
        killed before it could say so."""
        if self._blobs is not None and len(list(self._blobs.list(f"manifests/{self._job}"))) > 1:
            raise Corrupt(
                f"{self._folder} holds checkpoints, and {_LAST}, which names the last, is gone",
                why="it would begin at step 0",
                fix=_FROM_A_COPY,
            )

    def _last_step(self) -> int | None:
        last = self._last()
        return None if last is None else last[0]

    def _last(self) -> tuple[int, str] | None:
        if self._folder is None or not (self._folder / _LAST).exists():
            return None
        try:
            found = json.loads((self._folder / _LAST).read_text())
            return int(found["step"]), str(found["manifest"])
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(
                f"{self._folder / _LAST} cannot be read",
                why=str(error),
                fix="use another folder, or remove this one to begin anew",
            ) from error
