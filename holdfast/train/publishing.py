"""What a run leaves behind: a version of a model, or its weights as one safetensors file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.models.names import check_alias, check_model
from holdfast.storage import open_store
from holdfast.train.modes.rounds import Rounds
from holdfast.train.states.memory import entry
from holdfast.train.states.state import State, spell
from holdfast.wire import disk, logs, talk

log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class Published:
    """Where the weights are: in which store (or folder), under which name, with which digest; and
    as which version of the model, if it became one."""

    where: str
    key: str
    digest: str
    model: str = ""
    version: int | None = None

    def __str__(self) -> str:
        at = f"{self.where}/{self.key}"
        return at if self.version is None else f"{self.model}@{self.version} ({at})"


@dataclass(frozen=True, slots=True)
class Wish:
    """What was said of a version besides its model and its name; see `Run.publish`."""

    example: Any = None
    metrics: Mapping[str, float] | None = None
    build: Callable[..., Any] | str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    alias: str | None = None
    dynamic: Mapping[str, Any] | None = None


def publish(rounds: Rounds, model: nn.Module, name: str, wish: Wish) -> Published:
    """See `Run.publish`."""
    if wish.example is not None:
        check_model(name)
    if wish.alias is not None:
        check_alias(wish.alias)
    rounds.verify(f"when {name} was to be published,", lambda: _as_state(model))
    found = rounds.together(lambda _lane: _write(rounds, model, name, wish), lanes=(0,))[0]
    return Published(**found)


def _as_state(model: nn.Module) -> State:
    tensors = model.state_dict().items()
    return State.of(0, [entry(name, it) for name, it in tensors if isinstance(it, torch.Tensor)])


def weights(model: nn.Module) -> bytes:
    """The model's `state_dict` as a safetensors file: what `safetensors.torch.load_file` reads."""
    return b"".join(buffers(model))


def digest_of(model: nn.Module) -> str:
    """SHA-256 of the model's weights, as they would be published."""
    return f"sha256:{hashlib.sha256(weights(model)).hexdigest()}"


def buffers(model: nn.Module) -> list[memoryview]:
    """The same file in pieces, as views of the tensors."""
    tensors = {
        name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)
    }
    return spell([entry(name, tensor) for name, tensor in sorted(tensors.items())])


def _write(rounds: Rounds, model: nn.Module, name: str, wish: Wish) -> dict[str, Any]:
    plane = os.environ.get(talk.COORDINATION_VARIABLE)
    if rounds.store and plane and wish.example is not None:
        # Not at the top: few workers publish, and all of them would wait for these imports.
        from holdfast.train.versioning import write_version  # noqa: PLC0415

        found = write_version(rounds, rounds.store, plane, model, name, wish)
    else:
        found = _write_file(rounds, model, name)
        if wish.example is None and rounds.store:
            log.info("only the weights were written: a version that can be served needs example=")
    log.info("published", **asdict(found))
    return asdict(found)


def _write_file(rounds: Rounds, model: nn.Module, name: str) -> Published:
    data = weights(model)
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    if rounds.store:
        blobs = open_store(rounds.store)
        key = f"published/{rounds.job}/{name}.safetensors"
        blobs.put(key, data, expect_digest=digest)
        return Published(blobs.address, key, digest)
    key = f"{name}.safetensors"
    disk.replace_durably(Path(key), data)
    return Published(str(Path.cwd()), key, digest)
