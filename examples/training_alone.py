"""The run of the training demo that nobody disturbs: a plain process, without a cluster."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

from training_crew import EXAMPLES, LANES
from training_screen import picture_alone

from holdfast.cli.run.progress import RunProgress
from holdfast.storage import open_store
from holdfast.train.states.checkpoints import restore
from holdfast.train.states.state import TrainingState

# Of an epoch: 1,437 pictures, 16 for each of 8 lanes in a step.
STEPS: Final = 12
_EPOCH: Final = re.compile(r"epoch +\d+ +step +(\d+) +loss ([\d.]+) +accuracy ([\d.]+)%")


class DemoError(Exception):
    """Something did not happen in time, or ended as it should not."""


class Alone:
    """`python digits.py`: one process with all lanes, no cluster, nobody who kills it."""

    def __init__(self, folder: Path, epochs: int) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self._epochs = epochs
        self._lines: list[str] = []
        kept = {name: text for name, text in os.environ.items() if not name.startswith("HOLDFAST")}
        own = {
            "HOLDFAST_SETTINGS": json.dumps({"epochs": str(epochs)}),
            "HOLDFAST_CHECKPOINTS": str(folder / "checkpoints"),
            "PYTHONPATH": str(EXAMPLES.parent),
        }
        with (folder / "errors").open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-u", str(EXAMPLES / "digits.py")],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=folder,
                env={**kept, **own},
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)

    def picture(self) -> RunProgress:
        found = [matched for line in list(self._lines) if (matched := _EPOCH.search(line))]
        total = STEPS * self._epochs
        step, metrics = 0, {}
        if found:
            step = int(found[-1][1])
            metrics = {"loss": float(found[-1][2]), "accuracy": float(found[-1][3]) / 100}
        picture: RunProgress = picture_alone(step, total, metrics, LANES)
        return picture

    def done(self) -> bool:
        """Whether it has come to its end; raises if that was none to be glad of."""
        if self._process.poll() not in (None, 0):
            words = (self.folder / "errors").read_text(errors="replace")[-2000:]
            raise DemoError(f"the undisturbed run failed:\n{words}")
        return self._process.returncode == 0 and not self._reader.is_alive()

    def words(self) -> list[str]:
        return list(self._lines)

    def state(self) -> TrainingState:
        last = json.loads((self.folder / "checkpoints" / "last.json").read_text())
        blobs = open_store(self.folder / "checkpoints")
        return restore(blobs, last["manifest"], "solo", last["step"])

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
