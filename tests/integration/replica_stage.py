"""A plane, a store and a registry for replicas, and replicas as their agent would start them."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.coordination import Facts, Membership, connect
from holdfast.models.drafts import VersionDraft
from holdfast.models.examples import Example
from holdfast.models.examples import to_bytes as example_bytes
from holdfast.models.records import EXAMPLE, ModelKind, Signature, TensorSpec, Version
from holdfast.models.registry import Registry
from holdfast.serve.records import (
    Load,
    Replica,
    RolloutPlan,
    RolloutStage,
    ServiceSpec,
    Variant,
    job_name,
    plan_path,
    replicas_path,
    service_path,
)
from holdfast.storage import bundles, open_store
from holdfast.system.job_certificates import equip
from holdfast.wire import documents, worker_messages
from tests.answers import HttpAnswer
from tests.contract.planes import EmbeddedPlane
from tests.credentials import SECRET
from tests.servers import free_port
from tests.waiting import eventually

WIDTH = 4
FLOATS = Signature((TensorSpec("x", "FP32", (-1, WIDTH)),), (TensorSpec("y", "FP32", (-1, WIDTH)),))
# A model that multiplies; what it multiplies with tells its versions apart.
TIMES = """
    import numpy as np

    FACTOR = np.float32({factor})

    def predict(inputs):
        return {{"y": inputs["x"] * FACTOR}}
"""


class ReplicaStage:
    """One service, `digits` unless it is said, and whatever a test publishes for it. `address`: of
    a plane that somebody else has."""

    def __init__(
        self, folder: Path, name: str = "digits", address: str = "", **service: Any
    ) -> None:
        self.folder = folder
        self.name = name
        self._own = None if address else EmbeddedPlane(folder / "plane")
        self.address = address or self.plane.address()
        self.blobs = open_store(f"file:{folder / 'store'}")
        self.session = connect(self.address)
        self.registry = Registry(self.session, self.blobs, "test")
        self.facts = Facts(self.session)
        self.service = ServiceSpec(name, service.pop("model", name), "prod", **service)
        self.plan = RolloutPlan(0, RolloutStage.STARTING)
        self.replicas: list[ReplicaProcess] = []
        self._write(service_path(name), self.service)

    @property
    def plane(self) -> EmbeddedPlane:
        assert self._own is not None
        return self._own

    def close(self) -> None:
        for replica in self.replicas:
            replica.kill()
        self.session.close()
        if self._own is not None:
            self._own.end()

    # --- versions --------------------------------------------------------------------------------

    def publish(
        self,
        code: str,
        example: Example | None = None,
        *,
        entry: str = "model:predict",
        kind: ModelKind = ModelKind.FUNCTION,
        signature: Signature = FLOATS,
        files: Mapping[str, bytes] | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> Version:
        """A version with this code as `model.py`."""
        folder = self.folder / "code" / str(len(list((self.folder / "code").glob("*"))))
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(textwrap.dedent(code))
        held = {**(files or {})}
        if example is not None:
            held[EXAMPLE] = example_bytes(example)
        bundle = bundles.push(self.blobs, folder).digest
        draft = VersionDraft(
            self.service.model,
            kind,
            signature,
            held,
            bundle=bundle,
            entry=entry,
            arguments=arguments or {},
        )
        return self.registry.publish(draft)

    def publish_times(self, factor: float, *, before: str = "", claimed: float = 0.0) -> int:
        """A version that multiplies; `before` is more of its code, `claimed` what its example says
        that it multiplies with."""
        x = np.arange(2 * WIDTH, dtype=np.float32).reshape(2, WIDTH)
        example = Example({"x": x}, {"y": x * np.float32(claimed or factor)})
        code = textwrap.dedent(TIMES.format(factor=factor)) + textwrap.dedent(before)
        return self.publish(code, example).number

    # --- what is wanted --------------------------------------------------------------------------

    def hold(
        self, *numbers: int, stable: int | None = None, version_revision: int = 0
    ) -> RolloutPlan:
        """The next plan: hold these; the first is the stable one unless it is said."""
        chosen = stable if stable is not None else numbers[0]
        self.plan = replace(
            self.plan,
            number=self.plan.number + 1,
            stage=RolloutStage.STEADY,
            hold=tuple(numbers),
            variants=(Variant("stable", chosen, 10_000),),
            stable=chosen,
            version_revision=version_revision,
        )
        self._write(plan_path(self.name), self.plan)
        return self.plan

    def change(self, **service: Any) -> None:
        self.service = replace(self.service, **service)
        self._write(service_path(self.name), self.service)

    def _write(self, path: str, value: Any) -> None:
        data = documents.to_bytes(value)
        there = self.facts.read(path, fresh=True)
        transaction = self.facts.transaction(lambda: False)
        if there is None:
            transaction.create(path, data)
        else:
            transaction.replace(path, data)
        transaction.commit()

    # --- replicas --------------------------------------------------------------------------------

    def start(self, worker: int = 1, node: str = "n1", **environment: str) -> ReplicaProcess:
        replica = ReplicaProcess(self, worker, node, environment)
        self.replicas.append(replica)
        return replica

    def shown(self) -> dict[int, Replica]:
        """Replicas as others see them."""
        members = Membership(self.session, replicas_path(self.name)).members()
        return {
            int(name): documents.from_document(name, Replica, info.data)
            for name, info in members.items()
        }

    def states(self, worker: int) -> dict[int, Load]:
        found = self.shown().get(worker)
        return {} if found is None else {n: held.state for n, held in found.versions.items()}

    def reason(self, worker: int, version: int) -> str:
        return self.shown()[worker].versions[version].reason

    def await_state(self, worker: int, version: int, state: Load = Load.READY) -> None:
        eventually(
            lambda: self.states(worker).get(version) is state,
            f"replica {worker} says {state.value} of version {version}",
        )


class ReplicaProcess:
    """One replica, started with the environment that an agent gives."""

    def __init__(
        self, stage: ReplicaStage, worker: int, node: str, environment: Mapping[str, str]
    ) -> None:
        self.worker = worker
        self.http_port, self.grpc_port = free_port(), free_port()
        self.folder = stage.folder / node / "workers" / f"{job_name(stage.name)}.{worker}"
        self.folder.mkdir(parents=True)
        equip(self.folder, SECRET)
        self.cache = stage.folder / node / "serving"
        given = {
            worker_messages.FOLDER_VARIABLE: str(self.folder),
            worker_messages.JOB_VARIABLE: job_name(stage.name),
            worker_messages.WORKER_VARIABLE: str(worker),
            worker_messages.PORTS_VARIABLE: f"{self.http_port},{self.grpc_port}",
            worker_messages.HOST_VARIABLE: "127.0.0.1",
            worker_messages.STORE_VARIABLE: stage.blobs.address,
            worker_messages.COORDINATION_VARIABLE: stage.address,
            worker_messages.REGION_VARIABLE: "north",
        }
        with (self.folder / "output.log").open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.serve.replica", stage.name],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **given, **environment},
                cwd=self.folder,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def output(self) -> str:
        return (self.folder / "output.log").read_text(errors="replace")[-6_000:]

    def kill(self) -> None:
        if self.alive:
            self.process.kill()
        self.process.wait(30)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float = 60.0) -> int:
        return self.process.wait(timeout_s)

    # --- requests --------------------------------------------------------------------------------

    def call(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HttpAnswer:
        line = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=60)
        try:
            line.request(method, path, body, dict(headers or {}))
            answer = line.getresponse()
            names = {name.lower(): text for name, text in answer.getheaders()}
            return HttpAnswer(answer.status, names, answer.read())
        finally:
            line.close()

    def get(self, path: str, **headers: str) -> HttpAnswer:
        return self.call("GET", path, headers=_spelled(headers))

    def predict(self, rows: Sequence[Sequence[float]], **headers: str) -> HttpAnswer:
        body = json.dumps({"x": [list(row) for row in rows]}).encode()
        return self.call("POST", "/predict/digits", body, _spelled(headers))

    def infer(self, row: Sequence[float], path: str = "", **headers: str) -> HttpAnswer:
        return self.call(
            "POST", path or "/v2/models/digits/infer", infer_body(row), _spelled(headers)
        )

    def ready(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.get("/v2/health/ready").status == 200
        return False

    def await_ready(self) -> None:
        def there() -> bool:
            assert self.alive, self.output()
            return self.ready()

        eventually(there, "the replica is ready")


def infer_body(row: Sequence[float]) -> bytes:
    tensor = {"name": "x", "shape": [1, len(row)], "datatype": "FP32", "data": list(row)}
    return json.dumps({"inputs": [tensor]}).encode()


def _spelled(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): text for name, text in headers.items()}


def gone(pid: int) -> bool:
    """Whether the process has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def settle(seconds: float) -> None:
    """Time in which something would happen that must not."""
    time.sleep(seconds)  # pause: it would have happened by then
