"""What `holdfast serve` starts beside the replicas, and what it tells in the end: an address, and a
command that works there."""

from __future__ import annotations

import http.client
import json
import shlex
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.cli import listing, output, serving
from holdfast.cli.opening import Opened
from holdfast.wire.errors import HoldfastError, TimedOut
from holdfast.wire.limits import SERVE_LOOK_S

if TYPE_CHECKING:
    from holdfast.cli.serve_options import Front
    from holdfast.models.records import TensorSpec, Version

# A body that is longer than this goes into a file, and the command names it.
_BODY_CHARACTERS_MAX: Final = 200
_PROBE_S: Final = 5.0


def processes(found: Opened, front: Front, show: Callable[[str], None]) -> dict[str, str]:
    """A conductor and a gateway, started if the cluster has none; the gateways' addresses."""
    from holdfast.launch import serving as launching

    return launching.ensure(
        found.cluster,
        found.session,
        listen=front.gateway,
        region=front.region,
        together=front.together,
        look=lambda what: show(f"waiting for {what}"),
    )


def end_processes(found: Opened) -> str:
    """End what `processes` had started here, if nothing is served any more; in words what has
    ended, or nothing."""
    from holdfast.launch import serving as launching

    services = serving.services_of(found)
    with output.err().status("nothing is served: the gateway ends") as shown:
        stopped = launching.end(
            found.cluster,
            found.session,
            lambda: bool(services.services()),
            lambda what: shown.update(f"waiting for {what}"),
        )
    if not stopped:
        return ""
    for name, one in sorted(services.gateways().items()):
        listing.note(f"the gateway {name} at {one.address} goes on: it was not started here so")
    named = ", ".join(one.name for one in stopped)
    return f"nothing is served any more: {named} ended; holdfast serve starts them again"


def until_answered(addresses: Mapping[str, str], name: str, timeout_s: float) -> None:
    """Wait until a gateway answers for the service: 200, or 401 where a key is asked for."""
    deadline_s = time.monotonic() + timeout_s
    address = _url(addresses)
    said = "nothing"
    while time.monotonic() < deadline_s:
        try:
            status = _ask(address, f"/v2/models/{name}/ready")
        except (OSError, http.client.HTTPException) as error:
            said = str(error)
        else:
            if status in (200, 401):
                return
            said = f"status {status}"
        time.sleep(SERVE_LOOK_S)
    raise TimedOut(
        f"the gateway at {address} does not answer for {name}",
        why=f"it said {said}",
        fix="see its log: holdfast status shows where",
    )


def _ask(address: str, path: str) -> int:
    connection = serving.connection_to(address, _PROBE_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


@dataclass(frozen=True)
class Told:
    """What the command says when it is done. `key`: a new API key."""

    sight: serving.Sight
    addresses: Mapping[str, str]
    key: str
    curl: str

    @property
    def url(self) -> str:
        return _url(self.addresses)

    def document(self) -> dict[str, Any]:
        service, course = self.sight.service, self.sight.course
        return {
            "service": service.name,
            "model": service.model,
            "target": service.target,
            "version": course.stable if course else None,
            "stage": course.stage.value if course else "",
            "replicas": len(self.sight.replicas),
            "url": self.url,
            "gateways": dict(self.addresses),
            "predict": f"{self.url}/predict/{service.name}",
            "key": self.key or None,
            "curl": self.curl,
        }

    def show(self, *, waited: bool) -> None:
        service, name = self.sight.service, self.sight.name
        if waited:
            version = serving.arms_of(self.sight.course)
            what = f"{service.model} version {version} is served by {len(self.sight.replicas)}"
            output.out().print(f"{what} replica{'s' * (len(self.sight.replicas) != 1)}")
        else:
            output.out().print(f"{name} comes up: {self.sight.progress()}", markup=False)
        rows = [("address", f"{self.url}/v2/models/{name}")]
        if self.key:
            rows.append(("key", f"{self.key}   (shown once: only its SHA-256 is kept)"))
        listing.facts(rows)
        # In one line, for the terminal to break: so it can be copied.
        output.out().print(f"{'try':<9}", style="dim", end="")
        output.out().print(self.curl, markup=False)
        if self.sight.failed():
            listing.note(
                f"version {self.sight.wanted} was taken back; to try it again: "
                f"holdfast rollout {name}"
            )
        listing.note(
            f"next: holdfast services {name}   holdfast rollout {name} VERSION"
            f"   holdfast why {name}"
        )


def told(found: Opened, name: str, addresses: Mapping[str, str], key: str) -> Told:
    """What there is to tell now."""
    sight = serving.look(found, name)
    return Told(sight, addresses, key, _curl(found, sight, addresses, key))


def _url(addresses: Mapping[str, str]) -> str:
    return next(iter(addresses.values()))


def _curl(found: Opened, sight: serving.Sight, addresses: Mapping[str, str], key: str) -> str:
    """A command that works: a body that fits, the key if it is known."""
    body = json.dumps(_body(found, sight))
    if len(body) > _BODY_CHARACTERS_MAX:
        path = found.cluster.folder / "examples" / f"{sight.name}.json"
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_text(body)
        body = f"@{path}"
    words = ["curl", "-s", f"{_url(addresses)}/predict/{sight.name}", "-d", body]
    if key:
        words += ["-H", f"x-api-key: {key}"]
    return shlex.join(words)


# --- a body that fits -----------------------------------------------------------------------------


def _body(found: Opened, sight: serving.Sight) -> dict[str, Any]:
    """The first row of the version's own example, else zeros."""
    from holdfast.models.catalogue import Catalogue

    number = sight.course.stable if sight.course and sight.course.stable else sight.wanted
    if number is None:
        return {}
    version = Catalogue(found.session).version(sight.service.model, number)
    try:
        inputs = _example(found, version)
    except HoldfastError as error:
        listing.note(f"its example cannot be read: {error.what}")
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
