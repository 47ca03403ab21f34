"""A store under test, and what a test may do to it behind its back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.storage import Blobs


@dataclass(frozen=True)
class StoreUnderTest:
    """`overwrite` puts other bytes in a blob's place without the store's own checks."""

    kind: str
    blobs: Blobs
    another: Callable[[], Blobs]
    overwrite: Callable[[str, bytes], None]

    @property
    def keeps_the_first(self) -> bool:
        """Whether it has conditional writes."""
        return self.kind != "rclone"
