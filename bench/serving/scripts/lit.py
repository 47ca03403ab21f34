"""LitServe: `lit.py PORT plain|fast`, the model's name in BENCH_MODEL."""

# LitServe looks at the annotations themselves, so they are no texts here.
import os
import sys
from typing import Any

import litserve
import numpy as np

from bench.serving import work

NAME = os.environ["BENCH_MODEL"]


class Api(litserve.LitAPI):  # type: ignore[misc]
    """One row a request; LitServe makes batches of the heavier model's."""

    def setup(self, device: str) -> None:
        self.model = work.model(NAME)

    def decode_request(self, request: dict[str, Any]) -> work.Array:
        return work.rows_of(request)

    def batch(self, inputs: list[work.Array]) -> work.Array:
        return np.concatenate(inputs)

    def predict(self, rows: work.Array) -> work.Array:
        return self.model(rows)

    def unbatch(self, rows: work.Array) -> list[work.Array]:
        return [rows[place : place + 1] for place in range(len(rows))]

    def encode_response(self, rows: work.Array) -> dict[str, Any]:
        return work.reply_of(NAME, rows)


if __name__ == "__main__":
    port, queue = int(sys.argv[1]), sys.argv[2]
    batch = work.BATCH_MAX if NAME == "heavy" else 1
    api = Api(max_batch_size=batch, batch_timeout=0.0, api_path=f"/v2/models/{NAME}/infer")
    server = litserve.LitServer(
        api, accelerator="cpu", workers_per_device=1, fast_queue=queue == "fast"
    )
    server.run(
        host="127.0.0.1",
        port=port,
        num_api_servers=1,
        log_level="error",
        access_log=False,
        generate_client_file=False,
    )
