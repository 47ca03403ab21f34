"""Memory of a GPU that other processes which use the same GPU can map: CUDA IPC.

The driver gives a handle for an allocation, 64 bytes that a peer opens. It is asked directly: what
torch has for this counts references in files of `/dev/shm`, which stay behind when a process is
killed. What a peer has opened stays readable when its owner dies.

Handles are of whole allocations, which torch's allocator cuts into tensors; a tensor is named by
its offset. Allocations of torch's expandable segments have no such handle: then nothing is shared,
and the reason is said.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import torch

from holdfast.train.sums.exchange_plan import MemberPlace
from holdfast.train.sums.shared_memory import Offer, Unshared, machine
from holdfast.wire.errors import Refused

# Between members that share memory nothing travels: they wait for one another once in so many bytes
# of gradients. On a device a wait costs as much as adding a gigabyte (444 MB of four workers: 15 ms
# in stages of 32 MB, 6.9 of 128, 5.7 in one), and what runs beside the backward pass takes from it.
DEVICE_STAGE_BYTES: Final = 512 * 1024 * 1024

_HANDLE_BYTES: Final = 64  # CU_IPC_HANDLE_SIZE
_LAZY_PEER_ACCESS: Final = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only flag that there is


class _Handle(ctypes.Structure):
    """CUipcMemHandle; passed by value."""

    _fields_ = (("reserved", ctypes.c_ubyte * _HANDLE_BYTES),)


class Driver:
    """The calls of the CUDA driver that sharing takes."""

    def __init__(self) -> None:
        try:
            self._library: Any = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise Unshared("the CUDA driver cannot be called", why=str(error)) from error

    def range_of(self, address: int) -> tuple[int, int]:
        """Where the allocation that has this address begins, and its bytes."""
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        self._call(
            "cuMemGetAddressRange_v2",
            ctypes.byref(base),
            ctypes.byref(size),
            ctypes.c_uint64(address),
        )
        return base.value, size.value

    def handle_of(self, address: int) -> bytes:
        handle = _Handle()
        self._call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(address))
        return bytes(handle.reserved)

    def open(self, handle: bytes) -> int:
        """Where it is mapped here."""
        address, made = ctypes.c_uint64(), _Handle((ctypes.c_ubyte * _HANDLE_BYTES)(*handle))
        flags = ctypes.c_uint(_LAZY_PEER_ACCESS)
        self._call("cuIpcOpenMemHandle_v2", ctypes.byref(address), made, flags)
        return address.value

    def close(self, address: int) -> None:
        self._call("cuIpcCloseMemHandle", ctypes.c_uint64(address))

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(ctypes.c_int(status), ctypes.byref(text))
            reason = (text.value or b"").decode()
            raise Unshared(
                "the CUDA driver does not share memory", why=f"{name}: {reason} {status}"
            )


class _Mapped:
    """A peer's allocation, as torch takes it over; unmapped when no tensor has it any more."""

    def __init__(self, driver: Driver, address: int, size: int) -> None:
        self._driver, self._address = driver, address
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }

    def __del__(self) -> None:
        with suppress(Exception):  # the process ends, or its context has: nothing is mapped
            self._driver.close(self._address)


class CudaMemory:
    """Of one GPU. Sums and copies run on a stream of their own beside the backward pass."""

    stage_bytes, block_bytes = DEVICE_STAGE_BYTES, DEVICE_STAGE_BYTES

    def __init__(self, device: torch.device, nccl: str = "") -> None:
        """`nccl`: its version, where members on other GPUs may be spoken with over it."""
        self._device, self._nccl = device, nccl
        self._refuses = ""
        self._driver: Driver | None = None
        self._stream: torch.cuda.Stream | None = None

    def place(self) -> MemberPlace:
        if not self._refuses:
            try:
                self.offer(torch.zeros(1, device=self._device))  # whether it can be done at all
            except Unshared as error:
                self.refuse(f"{error}: {error.why}")
        return MemberPlace(machine(), self._name(), self._refuses, self._nccl)

    def refuse(self, why: str) -> None:
        self._refuses = why

    def allocate(self, sizes: Sequence[int], dtypes: Sequence[torch.dtype]) -> list[torch.Tensor]:
        return [
            torch.zeros(size, dtype=dtype, device=self._device)
            for size, dtype in zip(sizes, dtypes, strict=True)
        ]

    def offer(self, tensor: torch.Tensor) -> Offer:
        driver, address = self._ready(), tensor.data_ptr()
        base, size = driver.range_of(address)
        holder = [self._name(), driver.handle_of(base).hex(), size]
        return Offer(holder, address - base, tensor.nbytes)

    def open(self, holder: Sequence[Any]) -> torch.Tensor:
        try:
            name, handle, size = str(holder[0]), bytes.fromhex(holder[1]), int(holder[2])
        except (IndexError, TypeError, ValueError) as error:
            why = str(error)
            raise Refused("a peer offers memory in a way that is not ours", why=why) from None
        if name != self._name() or len(handle) != _HANDLE_BYTES:
            raise Unshared("a peer's memory is on another GPU", why=f"{name}, not {self._name()}")
        driver = self._ready()
        mapped = _Mapped(driver, driver.open(handle), size)
        return torch.as_tensor(mapped, device=self._device)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        with torch.cuda.stream(self._stream):
            yield

    def settle(self) -> None:
        assert self._stream is not None
        self._stream.synchronize()

    def _name(self) -> str:
        """What names the GPU in every process, whichever devices each can see."""
        return f"cuda {torch.cuda.get_device_properties(self._device).uuid}"

    def _ready(self) -> Driver:
        """The driver, with torch's context current in this thread."""
        torch.cuda.set_device(self._device)
        if self._driver is None:
            torch.cuda.synchronize(self._device)
            self._driver = Driver()
        return self._driver
