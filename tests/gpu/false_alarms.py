"""10,000 steps in which a lane of somebody is checked in each: python -m tests.gpu.false_alarms

On the CPU; here since it takes a machine with cores for itself. Three workers. As many steps by one
process come first: both must come to the same weights.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.faults.training_stage import TrainingStage, hosted

PATIENCE_S: Final = 4 * 3600.0  # on two cores that others use as well


def main() -> None:
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    more = {"HOLDFAST_CHECK_STEPS": "3"}
    with (
        hosted() as host,
        tempfile.TemporaryDirectory() as folder,
        TrainingStage(Path(folder) / "stage", host, more=more) as stage,
    ):
        stage.patience_s = PATIENCE_S
        stage.options = {"model": "mlp", "samples": 8 * 4 * 100, "epochs": epochs, "silent": True}
        began_s = time.monotonic()
        right = stage.alone()
        alone_s = time.monotonic() - began_s
        print(f"alone: {right['step']} steps, {alone_s:.0f} s", flush=True)
        answers = stage.train([0, 1, 2])
        took_s = time.monotonic() - began_s - alone_s
        said = [worker.output.read_text() for worker in stage.workers.values()]
    alarms = sum(each.count("workers disagree") for each in said)
    same = {answer["digest"] for answer in answers} == {right["digest"]}
    print(
        f"{answers[0]['step']} steps, each with a check: {took_s:.0f} s; alarms: {alarms}; "
        f"the bits of one: {same}"
    )


if __name__ == "__main__":
    main()
