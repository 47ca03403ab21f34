"""Tensors of a GPU on the host: in page-locked memory, which is kept for the next time.

A copy into fresh memory is dozens of times slower: every page is made first, and the driver copies
through a buffer of its own. The loop stands still meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch


class Mirrors:
    """The host's copies of tensors, by name."""

    def __init__(self) -> None:
        self._held: dict[str, torch.Tensor] = {}

    def of(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The same tensors on the host: those of a GPU as copies that stay as they are until the
        next call, others themselves."""
        found, devices = dict(tensors), set()
        before, self._held = self._held, {}
        for name, tensor in tensors.items():
            if tensor.device.type != "cuda" or tensor.layout != torch.strided:
                continue
            mirror = before.get(name)
            if mirror is None or (mirror.shape, mirror.dtype) != (tensor.shape, tensor.dtype):
                mirror = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._held[name] = found[name] = mirror.copy_(tensor.detach(), non_blocking=True)
            devices.add(tensor.device)
        for device in devices:
            torch.cuda.synchronize(device)
        return found
