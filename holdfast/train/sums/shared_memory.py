"""Memory of this process that other processes of its machine can map.

A region is a memfd: it has no name in any folder, so nothing is left of it when every process that
maps it is gone, however it went. A peer opens it through `/proc`, by what an `Offer` says. The
region's random name is the proof that it is the one that was meant: in another container, or on
another machine, the same process number is another process, or none.

A `MemoryLease` says for which meeting a member's memory may be read. Whoever loses its peers
withdraws it before it writes there again. So a member that was stopped in the middle, and left
behind, notices that what it has read may be of another step.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import secrets
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import torch

from holdfast.train.sums.exchange_plan import MemberPlace
from holdfast.wire.errors import Refused, Unavailable

# Between members that share memory nothing travels: they wait for one another once in so many bytes
# of gradients, on the host and on a device (where a wait costs as much as copying a hundred MB).
SHARED_STAGE_BYTES: Final = 8 * 1024 * 1024
# And adds so many at once: a sum of three is then read from the processor's cache.
SHARED_BLOCK_BYTES: Final = 1024 * 1024

_PAGE: Final = 4096
_SEALS: Final = 1033, 1034  # F_ADD_SEALS, F_GET_SEALS; Python 3.11 has no names for what follows
_FIXED: Final = 0x0001 | 0x0002 | 0x0004  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW


class Unshared(Unavailable):
    """Memory that cannot be shared. Members take another way then; it says why."""


class Offer(NamedTuple):
    """What a peer needs to find a tensor: what holds it (each kind of memory says that in its own
    way), from which byte on, and how many bytes."""

    holder: list[Any]
    offset: int
    size: int

    @classmethod
    def of(cls, body: Any) -> Offer:
        try:
            holder, offset, size = body
            return cls(list(holder), int(offset), int(size))
        except (TypeError, ValueError) as error:
            raise Refused(
                "a peer offers memory in a way that is not ours", why=str(error)
            ) from None


class PeerMemory(Protocol):
    """One kind of memory that gradients lie in, and that peers can open."""

    stage_bytes: int  # members wait for one another once in so many
    block_bytes: int  # at most so many are added at once

    def place(self) -> MemberPlace:
        """Where this member is."""

    def refuse(self, why: str) -> None:
        """From the next meeting on, share nothing."""

    def allocate(self, sizes: Sequence[int], dtypes: Sequence[torch.dtype]) -> list[torch.Tensor]:
        """Zeros, that can be offered."""

    def offer(self, tensor: torch.Tensor) -> Offer:
        """So that peers can open it, as long as the tensor lives. Raises `Unshared`."""

    def open(self, holder: Sequence[Any]) -> torch.Tensor:
        """All bytes of what holds a peer's tensors; only to be read. Raises `Unshared`."""

    def at_work(self) -> AbstractContextManager[None]:
        """A context in which the exchange's sums and copies are started."""

    def settle(self) -> None:
        """Wait until those that were started are done."""


class Region:
    """So many bytes that peers can map. They are zeros."""

    def __init__(self, size: int) -> None:
        self.name = f"holdfast-{secrets.token_hex(16)}"
        self.size = max(-(-size // _PAGE) * _PAGE, _PAGE)
        try:
            self._fd = os.memfd_create(self.name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise Unshared("no memory to share could be made", why=str(error)) from error
        weakref.finalize(self, os.close, self._fd)
        try:
            os.ftruncate(self._fd, self.size)
            # Nobody can make it smaller: reading beyond its end would end the reader.
            fcntl.fcntl(self._fd, _SEALS[0], _FIXED)
            self.memory = mmap.mmap(self._fd, self.size)
        except OSError as error:
            raise Unshared("no memory to share could be made", why=str(error)) from error

    @property
    def holder(self) -> list[Any]:
        """For a peer: see `opened`."""
        return [os.getpid(), self._fd, self.name, self.size]


def opened(holder: Sequence[Any]) -> mmap.mmap:
    """Map a peer's region. Raises `Unshared`; it never maps another than the one that was meant."""
    try:
        pid, fd, name, size = int(holder[0]), int(holder[1]), str(holder[2]), int(holder[3])
    except (IndexError, TypeError, ValueError) as error:
        raise Refused("a peer offers memory in a way that is not ours", why=str(error)) from None
    path, right = f"/proc/{pid}/fd/{fd}", f"/memfd:{name} (deleted)"
    try:
        # Looked at before it is opened: opening a stranger's file may wait, or do something.
        if str(Path(path).readlink()) != right:
            raise Unshared(f"process {pid} is another one here", why=f"{path} is not {name}")
        mine = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if str(Path(f"/proc/self/fd/{mine}").readlink()) != right:
                raise Unshared(f"process {pid} has become another", why=f"{path} is not {name}")
            fixed = fcntl.fcntl(mine, _SEALS[1]) & _FIXED == _FIXED
            if os.fstat(mine).st_size != size or not fixed:
                raise Unshared(f"the memory of process {pid} is not as it was offered")
            return mmap.mmap(mine, size)
        finally:
            os.close(mine)
    except OSError as error:
        raise Unshared(f"the memory of process {pid} cannot be opened", why=str(error)) from error


def machine() -> str:
    """What all processes of one machine read alike, until it starts again. Those whom somebody has
    told NCCL to take for different machines are different ones here too."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.environ.get('NCCL_HOSTID', '')}".strip()
    return secrets.token_hex(16)  # nobody else's: then nothing is shared


class HostMemory:
    """Of the host: tensors of the CPU."""

    stage_bytes, block_bytes = SHARED_STAGE_BYTES, SHARED_BLOCK_BYTES

    def __init__(self) -> None:
        self._regions: dict[int, weakref.ref[Region]] = {}  # by where they begin
        self._refuses = ""

    def place(self) -> MemberPlace:
        return MemberPlace(machine(), "cpu", self._refuses)

    def refuse(self, why: str) -> None:
        self._refuses = why

    def allocate(self, sizes: Sequence[int], dtypes: Sequence[torch.dtype]) -> list[torch.Tensor]:
        begins, end = [], 0
        for size, dtype in zip(sizes, dtypes, strict=True):
            begins.append(end)
            end += -(-size * dtype.itemsize // _PAGE) * _PAGE
        try:
            region = Region(end)
        except Unshared as error:
            # Training goes on in memory of its own, and the sums travel over TCP.
            self.refuse(f"{error}: {error.why}")
            return [torch.zeros(n, dtype=dtype) for n, dtype in zip(sizes, dtypes, strict=True)]
        whole = tensor_over(region.memory, region)
        self._regions[whole.data_ptr()] = weakref.ref(region)
        return [
            whole[begin : begin + size * dtype.itemsize].view(dtype)
            for begin, size, dtype in zip(begins, sizes, dtypes, strict=True)
        ]

    def offer(self, tensor: torch.Tensor) -> Offer:
        storage = tensor.untyped_storage().data_ptr()
        region = self._regions.get(storage, lambda: None)()
        if region is None:
            raise Unshared("a sum of gradients is in memory that nobody else can open")
        return Offer(region.holder, tensor.data_ptr() - storage, tensor.nbytes)

    def open(self, holder: Sequence[Any]) -> torch.Tensor:
        return tensor_over(opened(holder))

    @contextmanager
    def at_work(self) -> Iterator[None]:
        yield

    def settle(self) -> None:
        """Nothing is under way behind a call that has returned."""


def tensor_over(memory: mmap.mmap, keeps: object = None) -> torch.Tensor:
    """All of its bytes. The mapping, and what is to be kept, live as long as the tensor's."""
    view = (ctypes.c_char * len(memory)).from_buffer(memory)
    view.keeps = keeps  # type: ignore[attr-defined]
    return torch.frombuffer(view, dtype=torch.uint8)


class MemoryLease:
    """For which meeting this member's memory may be read. Peers read it where it is written."""

    def __init__(self) -> None:
        self._region = Region(_PAGE)
        self._number = ctypes.c_uint64.from_buffer(self._region.memory)
        self.holder = self._region.holder

    def grant(self, number: int) -> None:
        self._number.value = number

    def withdraw(self) -> None:
        self._number.value = 0


class PeerLease:
    """A peer's."""

    def __init__(self, holder: Sequence[Any]) -> None:
        self._number = ctypes.c_uint64.from_buffer(opened(holder))

    @property
    def number(self) -> int:
        return self._number.value
