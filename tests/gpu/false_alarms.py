"""10,000 steps in which a lane of somebody is checked in each: python -m tests.gpu.false_alarms

On the CPU; here since it takes a machine with cores for itself. Three workers.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.faults.training_stage import TrainingStage, hosted


def main() -> None:
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    more = {"HOLDFAST_CHECK_STEPS": "3"}
    with (
        hosted() as host,
        tempfile.TemporaryDirectory() as folder,
        TrainingStage(Path(folder) / "stage", host, more=more) as stage,
    ):
        stage.options = {"model": "mlp", "samples": 8 * 4 * 100, "epochs": epochs, "silent": True}
        began_s = time.monotonic()
        right = stage.alone()
        alone_s = time.monotonic() - began_s
        answers = stage.train([0, 1, 2])
    same = {answer["digest"] for answer in answers} == {right["digest"]}
    took_s = time.monotonic() - began_s - alone_s
    print(f"{answers[0]['step']} steps, each with a check: {took_s:.0f} s; the bits of one: {same}")


if __name__ == "__main__":
    main()
