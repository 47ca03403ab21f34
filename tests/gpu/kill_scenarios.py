"""The trainings of `tests.faults.training_scenarios`, which also say what gradients travel over."""

from __future__ import annotations

import logging
from typing import Any

from tests.faults import training_scenarios


class Ways(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print(f"way {record.msg}", flush=True)


def scenario(options: dict[str, Any]) -> None:
    logger = logging.getLogger("holdfast.train.sums.exchange")
    logger.setLevel(logging.INFO)
    logger.addHandler(Ways())
    training_scenarios.scenario(options)
