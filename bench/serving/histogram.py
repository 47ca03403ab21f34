"""Latencies in constant memory: buckets that grow by half a percent each."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from typing import Final

GROWTH: Final = math.log(1.005)
LOWEST_S: Final = 1e-6
# Up to about 100 s; what is longer counts as that.
BUCKETS: Final = 3_700


@dataclass
class Histogram:
    """How many latencies were how long, to half a percent."""

    counts: array[int] = field(default_factory=lambda: array("Q", bytes(8 * BUCKETS)))
    count: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0

    def add(self, latency_s: float) -> None:
        place = int(math.log(max(latency_s, LOWEST_S) / LOWEST_S) / GROWTH)
        self.counts[min(place, BUCKETS - 1)] += 1
        self.count += 1
        self.total_s += latency_s
        self.longest_s = max(self.longest_s, latency_s)

    def merge(self, other: Histogram) -> None:
        for place, count in enumerate(other.counts):
            if count:
                self.counts[place] += count
        self.count += other.count
        self.total_s += other.total_s
        self.longest_s = max(self.longest_s, other.longest_s)

    def percentile_ms(self, share: float) -> float:
        """The latency that this share of all did not exceed, in ms; NaN if there are none."""
        wanted = math.ceil(share * self.count)
        for place, count in enumerate(self.counts):
            wanted -= count
            if count and wanted <= 0:
                upper_s = LOWEST_S * math.exp((place + 1) * GROWTH)
                return min(upper_s, self.longest_s) * 1000
        return math.nan

    @property
    def mean_ms(self) -> float:
        return self.total_s / self.count * 1000 if self.count else math.nan
