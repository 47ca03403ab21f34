"""What Triton's clients ask besides inference: configuration, statistics, the repository's index,
load and unload. Pure: documents as REST has them; `grpc_server` makes messages of them.

What is loaded is decided by rollouts. So `load` says whether a model is there, and `unload` is
refused with the command that ends a service.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from holdfast.models.records import TensorSpec, Version
from holdfast.serve.protocol.marks import NAME, number_of, platform_of
from holdfast.serve.records import ServiceSpec
from holdfast.wire.errors import Missing, Unavailable, Usage

READY: Final = "READY"

Document = dict[str, Any]


class Counted(Protocol):
    """A version that is loaded, and what was counted of it."""

    requests: int
    errors: int
    took_s: float

    @property
    def record(self) -> Version: ...


class Managed(Protocol):
    """What a replica's engine says of itself."""

    @property
    def service(self) -> ServiceSpec: ...
    @property
    def versions(self) -> Mapping[int, Any]: ...
    def knows(self, name: str) -> bool: ...
    def ready(self, version: int | None = None) -> bool: ...


def config(record: Version) -> Document:
    """`max_batch_size` 0: the dimensions are whole, with that of the batch."""
    return {
        "name": record.model,
        "platform": platform_of(record),
        "backend": NAME,
        "max_batch_size": 0,
        "input": [_tensor(spec) for spec in record.signature.inputs],
        "output": [_tensor(spec) for spec in record.signature.outputs],
    }


def statistics(engine: Managed, name: str = "", version: str = "") -> Document:
    """Of one version, or of all that are loaded. `name` may be left out."""
    if name:
        known(engine, name)
    held = engine.versions
    numbers = [number_of(version)] if version else sorted(held)
    for number in numbers:
        if number not in held:
            raise Missing(f"version {number} is not loaded here", fix="leave the version out")
    return {"model_stats": [_counted(held[number]) for number in numbers]}


def index(engine: Managed) -> list[Document]:
    """The versions that are loaded."""
    model = engine.service.model
    return [entry(model, number) for number in sorted(engine.versions) if engine.ready(number)]


def entry(model: str, version: int) -> Document:
    return {"name": model, "version": str(version), "state": READY, "reason": ""}


def load(engine: Managed, name: str) -> None:
    """Nothing is to be done for a model that is served."""
    known(engine, name)
    if not engine.ready():
        raise Unavailable(
            f"{name} is not ready here",
            why="its version is still being loaded, or failed",
            fix=f"holdfast why {engine.service.name}",
        )


def unload(engine: Managed, name: str) -> None:
    """A client of one replica cannot end a service."""
    known(engine, name)
    service = engine.service.name
    raise Usage(
        f"{name} stays loaded",
        why="what is loaded is decided by the service, for all of its replicas",
        fix=f"holdfast unserve {service} ends it; holdfast rollout {service} changes its version",
    )


def known(engine: Managed, name: str) -> None:
    if not engine.knows(name):
        served = engine.service.model
        raise Missing(
            f"there is no model {name[:100]!r} here",
            why=f"this replica serves {served}",
            fix=f"ask for {served}, or serve it: holdfast serve NAME",
        )


def _tensor(spec: TensorSpec) -> Document:
    kind = "STRING" if spec.datatype == "BYTES" else spec.datatype
    return {"name": spec.name, "data_type": f"TYPE_{kind}", "dims": list(spec.shape)}


def _counted(held: Counted) -> Document:
    """How long the failed ones took is not counted apart."""
    good = held.requests - held.errors
    return {
        "name": held.record.model,
        "version": str(held.record.number),
        "last_inference": 0,
        "inference_count": good,
        "execution_count": good,
        "inference_stats": {
            "success": {"count": good, "ns": int(held.took_s * 1e9)},
            "fail": {"count": held.errors, "ns": 0},
        },
    }
