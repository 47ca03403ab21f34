"""Which memory a worker's gradients lie in."""

from __future__ import annotations

import os

import torch

from holdfast.train.sums.cuda_memory import CudaMemory
from holdfast.train.sums.shared_memory import HostMemory, Memory


def memory_of(device: torch.device) -> Memory | None:
    """What peers on the same machine can open; None: nothing is to be shared, all goes over TCP
    (`HOLDFAST_EXCHANGE=tcp`, to compare, or to look for a fault)."""
    if os.environ.get("HOLDFAST_EXCHANGE") == "tcp":
        return None
    if device.type == "cpu":
        return HostMemory()
    if device.type == "cuda":
        return CudaMemory(device)
    return None
