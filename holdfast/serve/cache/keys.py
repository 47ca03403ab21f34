"""What makes two requests equal: the version's content, the inputs, the wanted outputs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

import numpy as np

from holdfast.models.records import Version
from holdfast.serve.protocol.tensors import packed_bytes
from holdfast.serve.protocol.values import Array, Request

KEY_BYTES: Final = 20


def key_of(version: Version, request: Request) -> bytes:
    """Equal for equal requests of one publication, and for no others. Not by the version's number:
    a Redis may outlive the cluster, and another one counts from 1 again."""
    named = f"{version.model}\0{version.number}\0{version.publication}"
    digest = blake2b(named.encode(), digest_size=KEY_BYTES)
    feed(digest, request.inputs)
    # All outputs are not the same as each of them by name: the answer's order differs.
    digest.update("\0\0".join(("", *request.outputs)).encode())
    return digest.digest()


def feed(digest: blake2b, inputs: Mapping[str, Array]) -> None:
    """Let a digest see these inputs, in the order of their names: a client may send them in any."""
    for name in sorted(inputs):
        array = inputs[name]
        digest.update(f"\0{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        if array.dtype == object:
            digest.update(packed_bytes(array))
        else:
            digest.update(np.ascontiguousarray(array).data)
