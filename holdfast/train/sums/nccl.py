"""NCCL between GPUs: point-to-point sends and receives, so that the order of sums stays ours.

The library that torch has loaded is called directly. A communicator is made without blocking, and
whatever waits for it looks at the mesh meanwhile: when a member is lost, it is aborted, and nobody
waits for ever. NCCL neither encrypts nor knows who speaks. So it is taken only where the network is
declared to be trusted; the communicator's identity travels over the mesh.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from holdfast.train.members.mesh import Mesh
from holdfast.train.sums.over_levels import Messages
from holdfast.train.sums.shared_memory import Unshared
from holdfast.wire.errors import PeerLost

# Members have so long to make a communicator; then they go on over TCP.
NCCL_MAKE_S: Final = 60.0
# Whoever waits for a sum looks so often whether everybody is still there.
NCCL_LOOK_S: Final = 0.001

_ID_BYTES: Final = 128  # NCCL_UNIQUE_ID_BYTES
_IN_PROGRESS: Final = 7  # ncclInProgress
_BYTES: Final = 1  # ncclUint8
_UNSET: Final = -(2**31)  # NCCL_CONFIG_UNDEF_INT


class _Id(ctypes.Structure):
    """ncclUniqueId; passed by value."""

    _fields_ = (("internal", ctypes.c_byte * _ID_BYTES),)


class _NcclConfig(ctypes.Structure):
    """ncclConfig_t as version 2.14 has it, which every later one takes by its size."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cluster", ctypes.c_int),
    )


class Library:
    """The calls that we need."""

    def __init__(self) -> None:
        try:
            self._library: Any = ctypes.CDLL("libnccl.so.2")
        except OSError as error:
            raise Unshared("NCCL is not there", why=str(error)) from error
        self._library.ncclGetErrorString.restype = ctypes.c_char_p

    def version(self) -> str:
        found = ctypes.c_int()
        self.call("ncclGetVersion", ctypes.byref(found))
        return str(found.value)

    def new_id(self) -> bytes:
        found = _Id()
        self.call("ncclGetUniqueId", ctypes.byref(found))
        return bytes(found.internal)

    def call(self, name: str, *arguments: Any) -> None:
        """Raises `Unshared`; what is under way counts as done: see `Communicator.wait`."""
        status = getattr(self._library, name)(*arguments)
        if status not in (0, _IN_PROGRESS):
            reason = (self._library.ncclGetErrorString(ctypes.c_int(status)) or b"").decode()
            raise Unshared("NCCL has failed", why=f"{name}: {reason}")


def nccl_version() -> str:
    """Empty: there is none."""
    try:
        return Library().version()
    except Unshared:
        return ""


class Communicator:
    """Of some ranks, each with a GPU of its own."""

    def __init__(
        self,
        library: Library,
        identity: bytes,
        rank: int,
        ranks: int,
        device: torch.device,
        check: Callable[[], None],
    ) -> None:
        """`check` is called while it waits: it raises if there is nothing to wait for any more."""
        self._library, self._device, self._check = library, device, check
        self._comm = ctypes.c_void_p()
        torch.cuda.set_device(device)
        made = _Id((ctypes.c_byte * _ID_BYTES)(*[byte - 256 * (byte > 127) for byte in identity]))
        config = _NcclConfig(ctypes.sizeof(_NcclConfig), 0xCAFEBEEF, 21400, 0, _UNSET)
        where = ctypes.byref(self._comm), ctypes.c_int(ranks), made, ctypes.c_int(rank)
        try:
            self._library.call("ncclCommInitRankConfig", *where, ctypes.byref(config))
            self._progress(time.monotonic() + NCCL_MAKE_S)
        except BaseException:
            self.abort()
            raise

    def exchange(
        self,
        sends: Sequence[tuple[int, torch.Tensor]],
        receives: Sequence[tuple[int, torch.Tensor]],
        stream: torch.cuda.Stream,
    ) -> None:
        """All of them at once, ranks with tensors; handed over to the stream."""
        handle = ctypes.c_void_p(stream.cuda_stream)
        self._library.call("ncclGroupStart")
        for name, messages in (("ncclSend", sends), ("ncclRecv", receives)):
            for rank, tensor in messages:
                where = ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.nbytes)
                kind = ctypes.c_int(_BYTES), ctypes.c_int(rank)
                self._library.call(name, *where, *kind, self._comm, handle)
        self._library.call("ncclGroupEnd")
        self._progress()

    def fail(self) -> None:
        """Raise if it is broken."""
        found = ctypes.c_int()
        self._library.call("ncclCommGetAsyncError", self._comm, ctypes.byref(found))
        if found.value not in (0, _IN_PROGRESS):
            raise Unshared("NCCL has failed", why=f"error {found.value}")

    def abort(self) -> None:
        """Whatever is under way ends."""
        if self._comm:
            comm, self._comm = self._comm, ctypes.c_void_p()
            self._library.call("ncclCommAbort", comm)

    def _progress(self, until_s: float | None = None) -> None:
        """Until what was begun is handed over."""
        found = ctypes.c_int(_IN_PROGRESS)
        while found.value == _IN_PROGRESS:
            self._check()
            if self._comm:
                self._library.call("ncclCommGetAsyncError", self._comm, ctypes.byref(found))
            if found.value == _IN_PROGRESS:
                if until_s is not None and time.monotonic() > until_s:
                    raise Unshared("NCCL does not come about", why=f"it took {NCCL_MAKE_S:g} s")
                time.sleep(NCCL_LOOK_S / 10)
        if found.value:
            raise Unshared("NCCL has failed", why=f"error {found.value}")


class NcclCarrier:
    """Between the members that carry. `ranks`: they, in the order of the communicator."""

    # The next one lies on the stream already when one is through: nothing stands still while what
    # has arrived is added on the host's word.
    ahead = 1

    def __init__(
        self, mesh: Mesh, ranks: Sequence[int], made: Communicator | None, device: torch.device
    ) -> None:
        self._mesh, self._made = mesh, made
        self._rank_of = {worker: rank for rank, worker in enumerate(ranks)}
        self._stream = torch.cuda.Stream(device)
        self._under_way = deque[torch.cuda.Event]()
        self._wakeup = os.eventfd(0)  # nobody sets it: `Mesh.idle` wants one

    def begin(self, sends: Messages, receives: Messages) -> None:
        if self._made is None:
            return  # another of my group carries
        try:
            self._made.exchange(self._ranked(sends), self._ranked(receives), self._stream)
        except Unshared as error:
            raise self._failed(self._made, error) from error
        done = torch.cuda.Event()
        done.record(self._stream)
        self._under_way.append(done)

    def finish(self) -> None:
        if self._made is None:
            return
        done = self._under_way.popleft()
        while not done.query():
            self._look(self._made, NCCL_LOOK_S)

    def look(self) -> None:
        if self._made is not None and self._under_way:
            self._look(self._made, 0.0)

    def _look(self, made: Communicator, within_s: float) -> None:
        """Wait a moment for a member to go, and abort everything if one has."""
        self._mesh.idle(self._wakeup, within_s)
        if self._mesh.broken is not None:
            made.abort()
            raise self._mesh.broken
        try:
            made.fail()
        except Unshared as error:
            raise self._failed(made, error) from error

    def _failed(self, made: Communicator, error: Unshared) -> PeerLost:
        lost = PeerLost("NCCL has failed", why=error.why)
        self._mesh.close(lost)
        made.abort()
        return lost

    def close(self) -> None:
        if self._made is not None:
            self._made.abort()
        if self._wakeup >= 0:
            os.close(self._wakeup)
            self._wakeup = -1

    def _ranked(self, messages: Messages) -> list[tuple[int, torch.Tensor]]:
        return [
            (self._rank_of[peer], tensor)
            for peer, tensors in messages.items()
            for tensor in tensors
            if tensor.numel()
        ]
