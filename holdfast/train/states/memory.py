"""Tensors as bytes and back: what the state and the exchange are made of."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping
from typing import Final

import torch
from torch import nn

from holdfast.train.states.state import StateEntry, spell
from holdfast.wire.errors import Usage

DTYPES: Final[Mapping[torch.dtype, str]] = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
}
_TORCH: Final = {name: dtype for dtype, name in DTYPES.items()}


def view_bytes(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor on the host. The view keeps the tensor alive."""
    size = tensor.numel() * tensor.element_size()
    if not size:
        return memoryview(bytearray())  # to be written, like any other
    array = (ctypes.c_char * size).from_address(tensor.data_ptr())
    array.tensor = tensor  # type: ignore[attr-defined]  # ctypes knows only the address
    return memoryview(array).cast("B")


def entry(name: str, tensor: torch.Tensor) -> StateEntry:
    """The tensor as an entry of a state: a view where it lies on the host in row order."""
    if tensor.dtype not in DTYPES or tensor.layout != torch.strided:
        raise Usage(
            f"{name!r} is a tensor of the type {tensor.dtype} with the layout {tensor.layout}",
            why="a checkpoint is a safetensors file, which does not know it",
            fix="keep it as a dense tensor of another type",
        )
    plain = tensor.detach().cpu().contiguous()
    return StateEntry(name, DTYPES[tensor.dtype], tuple(tensor.shape), view_bytes(plain))


def tensor_of(found: StateEntry) -> torch.Tensor:
    """A new tensor on the host with the entry's bytes."""
    made = torch.empty(found.shape, dtype=_TORCH[found.dtype])
    view_bytes(made)[:] = found.data
    return made


def fill(tensor: torch.Tensor, found: StateEntry) -> None:
    """Give a tensor the entry's value, in place."""
    if tuple(tensor.shape) != found.shape or DTYPES.get(tensor.dtype) != found.dtype:
        raise Usage(
            f"{found.name!r} is {found.dtype} of shape {list(found.shape)} in the job's state, but "
            f"{DTYPES.get(tensor.dtype)} of shape {list(tensor.shape)} in this script",
            why="the script, or a setting that shapes the model, is not the one that made it",
            fix="run the same script with the same settings, or start a new job",
        )
    with torch.no_grad():
        if tensor.device.type == "cpu" and tensor.is_contiguous():
            view_bytes(tensor.detach())[:] = found.data
        else:
            tensor.copy_(tensor_of(found))


def weights(model: nn.Module) -> bytes:
    """The model's `state_dict` as a safetensors file: what `safetensors.torch.load_file` reads."""
    return b"".join(weight_buffers(model))


def digest_of(model: nn.Module) -> str:
    """SHA-256 of the model's weights, as they would be published."""
    return f"sha256:{hashlib.sha256(weights(model)).hexdigest()}"


def weight_buffers(model: nn.Module) -> list[memoryview]:
    """The same file in pieces, as views of the tensors."""
    tensors = {
        name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)
    }
    return spell([entry(name, tensor) for name, tensor in sorted(tensors.items())])
