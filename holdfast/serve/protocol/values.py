"""A request and its answer, as a replica computes with them: whatever protocol they came by.

Arrays have the numpy type of their datatype (`tensors.DTYPES`), little-endian, in C order, and may
be read-only views of the request's body. BYTES is an array of `bytes` objects, or of
`str` where the version's record says so; BF16 is held as
float32, because numpy has no such type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(slots=True)
class Request:
    """What a client wants. `outputs`: the names that it asked for, in its order; empty: all.

    `version`: None until somebody has chosen one. `binary_all`: every output in the binary form
    but those in `json_outputs`; else only those in `binary_outputs`.
    """

    model: str
    version: int | None
    id: str
    inputs: dict[str, Array]
    outputs: tuple[str, ...] = ()
    binary_outputs: frozenset[str] = frozenset()
    json_outputs: frozenset[str] = frozenset()
    binary_all: bool = False
    parameters: Mapping[str, Any] = field(default_factory=dict)
    arm: str = ""
    region: str = ""

    @property
    def rows(self) -> int:
        """How many rows of a batch it has: the first dimension of its inputs."""
        for array in self.inputs.values():
            return int(array.shape[0]) if array.ndim else 1
        return 1

    def binary(self, output: str) -> bool:
        """Whether this output is wanted in the binary form."""
        if self.binary_all:
            return output not in self.json_outputs
        return output in self.binary_outputs


@dataclass(slots=True)
class Answer:
    """What a version answered. `outputs` are all that were asked for; `cached`: nobody computed."""

    model: str
    version: int
    id: str
    outputs: dict[str, Array]
    cached: bool = False
