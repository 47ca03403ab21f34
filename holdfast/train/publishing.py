"""The weights that a run leaves behind, as one safetensors file."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.storage import open_store
from holdfast.train.memory import entry
from holdfast.train.rounds import Rounds
from holdfast.train.state import spell
from holdfast.wire import logs

log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class Published:
    """Where the weights are: in which store (or folder), under which name, with which digest."""

    where: str
    key: str
    digest: str

    def __str__(self) -> str:
        return f"{self.where}/{self.key}"


def publish(rounds: Rounds, model: nn.Module, name: str) -> Published:
    """See `Run.publish`."""
    found = rounds.together(lambda _lane: _write(rounds, model, name), lanes=(0,))[0]
    return Published(**found)


def weights(model: nn.Module) -> bytes:
    """The model's `state_dict` as a safetensors file: what `safetensors.torch.load_file` reads."""
    tensors = {
        name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)
    }
    return b"".join(spell([entry(name, tensor) for name, tensor in sorted(tensors.items())]))


def digest_of(model: nn.Module) -> str:
    """SHA-256 of the model's weights, as they would be published."""
    return f"sha256:{hashlib.sha256(weights(model)).hexdigest()}"


def _write(rounds: Rounds, model: nn.Module, name: str) -> dict[str, Any]:
    data = weights(model)
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    if rounds.store:
        blobs = open_store(rounds.store)
        key = f"published/{rounds.job}/{name}.safetensors"
        blobs.put(key, data, expect_digest=digest)
        where = blobs.address
    else:
        where, key = str(Path.cwd()), f"{name}.safetensors"
        unfinished = Path(f"{key}.tmp")
        unfinished.write_bytes(data)
        unfinished.rename(key)
    log.info("published", where=where, key=key, digest=digest)
    return {"where": where, "key": key, "digest": digest}
