"""The newest answers, bounded by entries and by bytes; the one that was not asked for the longest
goes first. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from holdfast.serve.protocol.tensors import as_bytes
from holdfast.serve.protocol.values import Array

# What an entry costs beside its arrays: dictionaries and array heads.
CACHE_ENTRY_BYTES: Final = 512

Outputs = dict[str, Array]
_OBJECT_BYTES: Final = 40  # what Python adds to a bytes object and its place in an array


def size_of(outputs: Mapping[str, Array]) -> int:
    """What keeping these costs."""
    total = CACHE_ENTRY_BYTES
    for array in outputs.values():
        if array.dtype == object:
            elements = array.reshape(-1).tolist()
            total += sum(len(as_bytes(element)) + _OBJECT_BYTES for element in elements)
        else:
            total += array.nbytes
    return total


class Memory:
    """Outputs by key. What it gives is shared and read-only; what it takes is copied, because an
    output may be a few rows of a large batch, which would stay for their sake."""

    def __init__(self, entries_max: int, bytes_max: int) -> None:
        self.entries_max = entries_max
        self.bytes_max = bytes_max
        self.bytes = 0
        self._held: OrderedDict[bytes, tuple[Outputs, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: bytes) -> Outputs | None:
        found = self._held.get(key)
        if found is None:
            return None
        self._held.move_to_end(key)
        return found[0]

    def put(self, key: bytes, outputs: Mapping[str, Array]) -> None:
        size = size_of(outputs)
        if size > self.bytes_max or not self.entries_max:
            return
        kept = {name: array.copy() for name, array in outputs.items()}
        for array in kept.values():
            array.flags.writeable = False
        before = self._held.pop(key, None)
        if before is not None:
            self.bytes -= before[1]
        self._held[key] = (kept, size)
        self.bytes += size
        self.shrink()

    def shrink(self) -> None:
        """Let go of what is beyond the bounds."""
        while len(self._held) > self.entries_max or self.bytes > self.bytes_max:
            _, (_, size) = self._held.popitem(last=False)
            self.bytes -= size
