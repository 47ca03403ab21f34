"""What `holdfast serve` starts beside the replicas, and what it tells in the end: an address, and a
command that works there."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.cli import output
from holdfast.cli.options import Opened
from holdfast.client.service_status import ObservedService, variants_of
from holdfast.wire.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.client import Client, Service
    from holdfast.client.serving import Ended
    from holdfast.models.records import TensorSpec, Version

# A body that is longer than this goes into a file, and the command names it.
_BODY_CHARACTERS_MAX: Final = 200


def ended_words(ended: Ended) -> str:
    """What was started here for serving and has ended, in words; nothing, if nothing has."""
    if not ended.names:
        return ""
    for name, address in (ended.left or {}).items():
        output.note(f"the gateway {name} at {address} goes on: it was not started here so")
    named = ", ".join(ended.names)
    return f"nothing is served any more: {named} ended; holdfast serve starts them again"


@dataclass(frozen=True)
class ServedSummary:
    """What the command says when it is done. `key`: a new API key."""

    observed: ObservedService
    addresses: Mapping[str, str]
    key: str
    curl: str

    @property
    def url(self) -> str:
        return _url(self.addresses)

    def document(self) -> dict[str, Any]:
        service, plan = self.observed.service, self.observed.plan
        return {
            "service": service.name,
            "model": service.model,
            "target": service.target,
            "version": plan.stable if plan else None,
            "stage": plan.stage.value if plan else "",
            "replicas": len(self.observed.replicas),
            "url": self.url,
            "gateways": dict(self.addresses),
            "predict": f"{self.url}/predict/{service.name}",
            "key": self.key or None,
            "curl": self.curl,
        }

    def show(self, *, waited: bool) -> None:
        service, name = self.observed.service, self.observed.name
        if waited:
            version = variants_of(self.observed.plan)
            what = f"{service.model} version {version} is served by {len(self.observed.replicas)}"
            output.out().print(f"{what} replica{'s' * (len(self.observed.replicas) != 1)}")
        else:
            output.out().print(f"{name} comes up: {self.observed.progress()}", markup=False)
        rows = [("address", f"{self.url}/v2/models/{name}")]
        if self.key:
            rows.append(("key", f"{self.key}   (shown once: only its SHA-256 is kept)"))
        output.show_facts(rows)
        # In one line, for the terminal to break: so it can be copied.
        output.out().print(f"{'try':<9}", style="dim", end="")
        output.out().print(self.curl, markup=False)
        if self.observed.failed():
            output.note(
                f"version {self.observed.wanted} was taken back; to try it again: "
                f"holdfast rollout {name}"
            )
        output.note(
            f"next: holdfast services {name}   holdfast rollout {name} VERSION"
            f"   holdfast why {name}"
        )


def served_summary(client: Client, service: Service) -> ServedSummary:
    """What there is to tell now."""
    assert service.served is not None, "it was just served"
    observed, addresses, key = service.observe(), service.served.addresses, service.key
    return ServedSummary(observed, addresses, key, _curl(client.found, observed, addresses, key))


def _url(addresses: Mapping[str, str]) -> str:
    return next(iter(addresses.values()))


def _curl(found: Opened, observed: ObservedService, addresses: Mapping[str, str], key: str) -> str:
    """A command that works: a body that fits, the key if it is known."""
    body = json.dumps(_body(found, observed))
    if len(body) > _BODY_CHARACTERS_MAX:
        path = found.cluster.folder / "examples" / f"{observed.name}.json"
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_text(body)
        body = f"@{path}"
    words = ["curl", "-s", f"{_url(addresses)}/predict/{observed.name}", "-d", body]
    if key:
        words += ["-H", f"x-api-key: {key}"]
    return shlex.join(words)


# --- a body that fits -----------------------------------------------------------------------------


def _body(found: Opened, observed: ObservedService) -> dict[str, Any]:
    """The first row of the version's own example, else zeros."""
    from holdfast.models.catalogue import Catalogue

    number = observed.plan.stable if observed.plan and observed.plan.stable else observed.wanted
    if number is None:
        return {}
    version = Catalogue(found.session).version(observed.service.model, number)
    try:
        inputs = _example(found, version)
    except HoldfastError as error:
        output.note(f"its example cannot be read: {error.what}")
        inputs = {}
    return {
        spec.name: inputs[spec.name] if spec.name in inputs else _zeros(spec)
        for spec in version.signature.inputs
    }


def _example(found: Opened, version: Version) -> dict[str, Any]:
    from holdfast.models import examples
    from holdfast.models.records import EXAMPLE
    from holdfast.storage.parts import read_part

    part = version.files.get(EXAMPLE)
    if part is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / EXAMPLE
        path.write_bytes(read_part(found.cluster.blobs(), part))
        example = examples.read(path.parent, version.signature)
    if example is None:
        return {}
    rows = slice(0, 1) if version.signature.batches else slice(None)
    return {name: _plain(array[rows].tolist()) for name, array in example.inputs.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _zeros(spec: TensorSpec) -> Any:
    value: Any = 0.0 if spec.datatype.startswith(("FP", "BF")) else 0
    value = {"BOOL": False, "BYTES": "text"}.get(spec.datatype, value)
    for size in reversed(spec.shape):
        value = [value] * (1 if size < 0 else size)
    return value
