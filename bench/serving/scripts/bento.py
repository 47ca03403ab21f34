"""BentoML: `bentoml serve bench.serving.scripts.bento:Service`, the model's name in BENCH_MODEL."""

from __future__ import annotations

import os
from typing import Any

import bentoml
import numpy as np

from bench.serving import work

NAME = os.environ["BENCH_MODEL"]


@bentoml.service(
    workers=1, threads=1, traffic={"timeout": 60}, logging={"access": {"enabled": False}}
)
class Service:
    """The batching form takes and gives lists, one entry a request."""

    def __init__(self) -> None:
        self.model = work.model(NAME)

    if NAME == "heavy":

        @bentoml.api(  # type: ignore[untyped-decorator]  # BentoML is not installed here
            route="/v2/models/heavy/infer",
            batchable=True,
            max_batch_size=work.BATCH_MAX,
            max_latency_ms=60_000,
        )
        def infer(self, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
            rows = self.model(np.concatenate([work.rows_of({"inputs": [one]}) for one in inputs]))
            return [work.reply_of(NAME, rows[place : place + 1]) for place in range(len(rows))]

    else:

        @bentoml.api(route="/v2/models/small/infer")  # type: ignore[untyped-decorator]
        def infer(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
            return work.reply_of(NAME, self.model(work.rows_of({"inputs": inputs})))
