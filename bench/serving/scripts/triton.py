"""NVIDIA Triton, through pytriton: `triton.py PORT MODEL`."""

from __future__ import annotations

import os
import sys
import sysconfig

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from bench.serving import work

if __name__ == "__main__":
    port, name = int(sys.argv[1]), sys.argv[2]
    # Its own process of Python must find the library of this Python, not one of another release.
    os.environ["LD_LIBRARY_PATH"] = str(sysconfig.get_config_var("LIBDIR"))
    model = work.model(name)
    sizes = work.WIDTHS[name]

    @batch  # type: ignore[untyped-decorator]  # Triton is not installed here
    def infer(**inputs: work.Array) -> dict[str, work.Array]:
        return {work.OUTPUT: model(inputs[work.INPUT])}

    config = TritonConfig(
        http_address="127.0.0.1",
        http_port=port,
        grpc_port=port + 1,
        metrics_port=port + 2,
        allow_metrics=False,
        log_verbose=0,
    )
    with Triton(config=config) as triton:
        triton.bind(
            model_name=name,
            infer_func=infer,
            inputs=[Tensor(name=work.INPUT, dtype=np.float32, shape=(sizes[0],))],
            outputs=[Tensor(name=work.OUTPUT, dtype=np.float32, shape=(sizes[-1],))],
            config=ModelConfig(max_batch_size=work.BATCH_MAX, batcher=DynamicBatcher()),
        )
        triton.serve()
