"""Whether a reply is right: its status, its version, and every number of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from bench.serving import work
from bench.serving.replies import Reply, anything


@dataclass
class Right:
    """The check of a model's replies. `version`: of the header that ours has; empty: not looked at.

    What is right is computed when it is made, not while somebody measures. The same bytes are not
    parsed twice: a right answer stays right.
    """

    model: str
    version: str = ""
    _known: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._wanted = expected(self.model)

    def __call__(self, reply: Reply) -> str:
        wrong = anything(reply)
        if wrong:
            return wrong
        if self.version and reply.version != self.version:
            return f"version {reply.version!r} instead of {self.version}"
        if reply.body in self._known:
            return ""
        try:
            found = outputs(reply)
        except (ValueError, KeyError, IndexError, TypeError) as error:
            return f"not an answer: {error!r} in {reply.body[:120]!r}"
        if found.shape != self._wanted.shape:
            return f"shape {found.shape} instead of {self._wanted.shape}"
        if not np.allclose(found, self._wanted, rtol=work.TOLERANCE, atol=work.TOLERANCE):
            return f"wrong numbers: {reply.body[:120]!r}"
        if len(self._known) < 64:
            self._known.add(reply.body)
        return ""


@cache
def expected(model: str) -> work.Array:
    return work.model(model)(work.row(model))


def outputs(reply: Reply) -> work.Array:
    """The first tensor of a reply, from JSON or from the bytes behind it."""
    length = reply.header("inference-header-content-length")
    plain = json.loads(reply.body[: int(length)] if length else reply.body)
    if isinstance(plain, list):  # BentoML's batches
        plain = plain[0]
    tensor = plain["outputs"][0]
    if length and "binary_data_size" in tensor.get("parameters", {}):
        size = tensor["parameters"]["binary_data_size"]
        raw = reply.body[int(length) : int(length) + size]
        return np.frombuffer(raw, dtype=np.float32).reshape(tensor["shape"])
    return np.asarray(tensor["data"], dtype=np.float32).reshape(tensor["shape"])
