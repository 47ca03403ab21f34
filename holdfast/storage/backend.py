"""What a store must be able to do, before retries, checksums and time limits are added."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from holdfast.storage.deadline import TransferDeadline
from holdfast.storage.sources import MeteredSource
from holdfast.wire.limits import BLOB_CHUNK_BYTES


@dataclass(frozen=True, slots=True)
class Listed:
    """A blob as the store lists it. `modified_s` is by the store's clock, since 1970."""

    key: str
    size_bytes: int
    modified_s: float


class Backend(Protocol):
    """One kind of store. Every method may be called from any thread, and raises only our errors.

    Keys are already checked. `Unavailable` means that the call may be made again.
    """

    def describe(self) -> str:
        """The address, without anything secret."""

    def put(self, key: str, chunks: MeteredSource, deadline: TransferDeadline) -> None:
        """Replace the blob whole when `chunks` has come to its end, and durably; else nothing."""

    def put_if_absent(self, key: str, chunks: MeteredSource, deadline: TransferDeadline) -> bool:
        """The same, if there is no blob with that key; False when there is one."""

    def open(
        self, key: str, deadline: TransferDeadline, piece_bytes: int = BLOB_CHUNK_BYTES
    ) -> tuple[int, Iterator[bytes]]:
        """The size, and the bytes in pieces, none of them larger than said. `Missing` at once when
        there is no such blob."""

    def stat(self, key: str) -> Listed | None:
        """Size and age, without reading; None when it is not there."""

    def confirm(self, key: str) -> None:
        """What a look has shown is durable when this returns."""

    def list(self, prefix: str, after: str) -> Iterator[Listed]:
        """The blobs below `prefix` whose key is greater than `after`, in the order of keys."""

    def delete(self, key: str) -> None:
        """Gone, also when it was not there."""

    def delete_unless_newer(self, key: str, than_s: float, deadline: TransferDeadline) -> bool:
        """Delete it if it was last written at `than_s` or before; whether it is gone now."""

    def tidy(self) -> int:
        """Remove what killed writers have left; how many."""
