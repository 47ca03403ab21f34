"""Resources of a machine: the one value in which needs, promises and limits are counted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of a machine: what it has, what a worker needs, what a queue may use."""

    cpu: float = 0.0
    memory_bytes: int = 0
    gpu: int = 0
    disk_bytes: int = 0

    def __add__(self, other: Resources) -> Resources:
        return Resources(
            self.cpu + other.cpu,
            self.memory_bytes + other.memory_bytes,
            self.gpu + other.gpu,
            self.disk_bytes + other.disk_bytes,
        )

    def __sub__(self, other: Resources) -> Resources:
        return Resources(
            self.cpu - other.cpu,
            self.memory_bytes - other.memory_bytes,
            self.gpu - other.gpu,
            self.disk_bytes - other.disk_bytes,
        )

    def times(self, count: int) -> Resources:
        return Resources(
            self.cpu * count, self.memory_bytes * count, self.gpu * count, self.disk_bytes * count
        )

    def fits(self, capacity: Resources) -> bool:
        """Whether `capacity` has at least this. A thousandth of a core is rounding."""
        return (
            self.cpu <= capacity.cpu + 1e-3
            and self.memory_bytes <= capacity.memory_bytes
            and self.gpu <= capacity.gpu
            and self.disk_bytes <= capacity.disk_bytes
        )
