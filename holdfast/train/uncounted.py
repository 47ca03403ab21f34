"""Buffers that change without torch counting it.

Every lane begins a step with the buffers that the step before left: what a lane changed is found by
the count that torch keeps of each tensor's changes. Writes through `.data`, and those of some
kernels, are not counted, so lanes on one worker would see what other lanes left there. Batch norms
are known to do that, and are treated so; anything else is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from holdfast.train.calling import calling_line
from holdfast.train.sameness import same
from holdfast.wire.errors import Usage

# Whoever writes a buffer in each forward pass can afford it: what is larger is a table, a mask.
_BUFFER_BYTES_MAX: Final = 16 * 1024 * 1024


class Uncounted:
    """The buffers of the models, compared around some of the first batches."""

    def __init__(self, models: Mapping[str, nn.Module] | None = None) -> None:
        self._buffers = [
            (f"{title}/{path}.{name}".replace("/.", "/"), buffer)
            for title, model in (models or {}).items()
            for path, module in model.named_modules()
            if not isinstance(module, _NormBase)
            for name, buffer in module.named_buffers(recurse=False)
            if buffer.nbytes <= _BUFFER_BYTES_MAX
        ]
        self._before: list[tuple[int, torch.Tensor]] = []

    def before(self) -> None:
        """The body is about to run."""
        self._before = [(each._version, each.detach().clone()) for _, each in self._buffers]

    def after(self) -> None:
        """The body has run: what has another value must say so."""
        for (name, buffer), (version, before) in zip(self._buffers, self._before, strict=True):
            if buffer._version == version and not same(buffer.detach(), before):
                line = calling_line()
                raise Usage(
                    f"the buffer {name} was changed without torch counting it"
                    + (f", before {line}" if line else ""),
                    why="a write through .data, or by a kernel, is not seen; each worker would come"
                    " to another value",
                    fix="write to the buffer itself: with torch.no_grad(): self.buffer.copy_(...)",
                )
        self._before = []
