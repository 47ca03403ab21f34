"""Memory that processes share, by itself: opened by who was meant, and given back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from holdfast.train.sums.shared_memory import HostMemory, Region, Unshared, opened


def test_only_the_memory_that_was_meant_is_opened() -> None:
    region = Region(100)
    pid, fd, name, size = region.holder
    region.memory[:5] = b"right"
    assert opened(region.holder)[:5] == b"right"
    for wrong in (
        [pid, fd, "holdfast-another", size],
        [pid, 0, name, size],
        [1, fd, name, size],
        [2**22 - 1, fd, name, size],
        [pid, fd, name, size + 4096],
    ):
        with pytest.raises(Unshared):
            opened(wrong)
    with pytest.raises(OSError, match="not permitted"):  # so that no reader runs beyond its end
        os.ftruncate(fd, 0)


def test_shared_memory_is_given_back_with_the_last_tensor() -> None:
    memory = HostMemory()
    flat = memory.allocate([1_000, 5_000], [torch.float32, torch.bfloat16])
    held = memory.open(memory.offer(flat[1]).holder)
    name = memory.offer(flat[1]).holder[2]
    assert mapped(name) == 2
    del held, flat
    assert mapped(name) == 0


def mapped(name: str) -> int:
    """How often this process has it mapped."""
    return Path("/proc/self/maps").read_text().count(name)
