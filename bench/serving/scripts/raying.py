"""Ray Serve: `raying.py PORT MODEL FOLDER`. The tuned form has its switches in the environment."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

import numpy as np
import ray
from ray import serve
from starlette.requests import Request

from bench.serving import work


@serve.deployment(num_replicas=1, max_ongoing_requests=1000)
class Plain:
    def __init__(self, name: str) -> None:
        self.name, self.model = name, work.model(name)

    async def __call__(self, request: Request) -> dict[str, Any]:
        return work.reply_of(self.name, self.model(work.rows_of(await request.json())))


@serve.deployment(num_replicas=1, max_ongoing_requests=1000)
class Batching:
    def __init__(self, name: str) -> None:
        self.name, self.model = name, work.model(name)

    @serve.batch(max_batch_size=work.BATCH_MAX, batch_wait_timeout_s=0.0)  # type: ignore[untyped-decorator]  # Ray is not installed here
    async def compute(self, rows: list[work.Array]) -> list[work.Array]:
        found = self.model(np.concatenate(rows))
        return [found[place : place + 1] for place in range(len(found))]

    async def __call__(self, request: Request) -> dict[str, Any]:
        rows = await self.compute(work.rows_of(await request.json()))
        return work.reply_of(self.name, rows)


if __name__ == "__main__":
    port, name, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
        _temp_dir=folder,
    )
    serve.start(
        http_options={"host": "127.0.0.1", "port": port},
        logging_config={"log_level": "ERROR", "enable_access_log": False},
    )
    kind: Any = Batching if name == "heavy" else Plain
    serve.run(kind.bind(name), route_prefix=f"/v2/models/{name}/infer", blocking=False)
    stop = asyncio.Event()

    async def wait() -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        await stop.wait()

    asyncio.run(wait())
    serve.shutdown()
    ray.shutdown()
