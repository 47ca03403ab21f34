"""What was trained is served: rolled out, killed and rolled back, and no request fails.

    make demo
    python examples/serving_demo.py [FOLDER] [--port PORT]

Goes on where `training_demo.py` has ended: in FOLDER (`.demo/training` if none is given) lies a
cluster whose last training has published `digits@1`. Two replicas serve it behind a gateway, under
a steady load; a second version is rolled out, a replica is killed, and the service is rolled back.
All of it is real. The exit code is 0 only if every claim held.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import ctrl_c
import torch
from digits import pictures
from rich.console import Console
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from serving_load import TIMEOUT_S, Load

from holdfast.cluster import opened
from holdfast.coordination import Session
from holdfast.launch import ending, local, serving
from holdfast.launch.local import AgentSize
from holdfast.models.drafts import VersionDraft
from holdfast.models.records import WEIGHTS, Version
from holdfast.models.registry import Registry
from holdfast.serve.records import Limits, RolloutPolicy, RolloutStage, ServiceSpec
from holdfast.serve.records import Load as Loaded
from holdfast.serve.services import Services
from holdfast.wire.errors import HoldfastError
from holdfast.wire.resources import Resources

DEFAULT_FOLDER: Final = Path(__file__).parents[1] / ".demo" / "training"
MODEL: Final = "digits"
RATE: Final = 100.0
REPLICAS: Final = 2
PATIENCE_S: Final = 300.0
# A second a step: the demo shall not take long. So few requests say nothing of latency.
POLICY: Final = RolloutPolicy(steps=(1_000, 5_000), hold_s=1.0, latency_slack_ms=60_000.0)


class DemoError(Exception):
    """The demo cannot go on."""


class Demo:
    """The acts, in order, and whether what they claim was seen."""

    def __init__(self, console: Console, folder: Path, port: int, stack: ExitStack) -> None:
        self._console = console
        self._began_s = time.monotonic()
        self.good = True
        self.cluster = opened(folder / "cluster")
        stack.callback(ending.down, self.cluster)
        self.say("a server, a coordinator and an agent, over what the training has left ...")
        local.up(self.cluster, size=AgentSize(cpu=4.0))
        self.session: Session = stack.enter_context(self.cluster.session())
        self.registry = Registry(self.session, self.cluster.blobs(), "demo")
        self.services = Services(self.session, "demo")
        self.host, self.port = "127.0.0.1", port

    # --- the acts ---------------------------------------------------------------------------------

    def play(self) -> None:
        first = self.registry.version(MODEL, 1)
        self.serve(first)
        body = json.dumps({first.signature.inputs[0].name: _tests()[0][:1].tolist()}).encode()
        with Load(self.host, self.port, f"/predict/{MODEL}", body, RATE) as load:
            self.say(f"{RATE:g} requests a second, one after the other, until the end")
            self.wait("the load runs", lambda: load.sent > RATE)
            self.roll_out(first, load)
            self.kill_a_replica(load)
            self.roll_back(load)
            before = load.sent
            self.wait("some more are answered", lambda: load.sent > before + RATE)
        self.claim(
            load.failed == 0,
            f"{load.sent:,} requests, {load.failed} failed",
            f"p50 {load.percentile_ms(50):.1f} ms, p99 {load.percentile_ms(99):.1f} ms"
            + (f"; {dict(load.failures)}" if load.failed else ""),
        )

    def serve(self, first: Version) -> None:
        serving.ensure(self.cluster, self.session, listen=f"{self.host}:{self.port}")
        self.services.create(
            ServiceSpec(
                MODEL,
                MODEL,
                str(first.number),
                replicas_min=REPLICAS,
                replicas_max=REPLICAS,
                resources=Resources(cpu=1.0),
                limits=Limits(timeout_s=TIMEOUT_S),
                policy=POLICY,
            )
        )
        self.say(f"holdfast serve {MODEL}@1 --replicas {REPLICAS} ...")
        self.served(first.number)
        right = self.accuracy()
        told = first.metrics.get("accuracy")
        self.claim(
            told is not None and abs(right - told) < 1e-6,
            "version 1 reads as well as its training said",
            f"{right:.2%} of the test pictures, asked over HTTP",
        )

    def roll_out(self, first: Version, load: Load) -> None:
        second = self.publish_rounded(first)
        self.say(f"version {second} is published: the same weights in bf16; it is rolled out ...")
        self.services.rollout(MODEL, str(second))
        self.served(second)
        self.wait("version 2 answers", lambda: load.newest == str(second))
        shares = ", ".join(f"{step / 100:g} %" for step in POLICY.steps)
        self.claim(
            load.failed == 0,
            f"version {second} took over by {shares} and all",
            f"{load.sent:,} requests, {load.failed} failed",
        )

    def kill_a_replica(self, load: Load) -> None:
        victim = self.services.replicas(MODEL)[min(self.services.replicas(MODEL))]
        pid = _listener(victim.http_port)
        os.kill(pid, signal.SIGKILL)
        self.say(f"kill -9 {pid}: replica {victim.worker} is dead", "bold red")
        began_s = time.monotonic()
        self.wait(
            "another one has taken its place",
            lambda: len(self.ready() - {victim.worker}) == REPLICAS,
        )
        self.claim(
            load.failed == 0,
            "the other one answered, and a third took its place",
            f"after {time.monotonic() - began_s:.1f} s; {load.failed} failed",
        )

    def roll_back(self, load: Load) -> None:
        began_s = time.monotonic()
        self.services.rollback(MODEL)
        self.wait("version 1 answers", lambda: load.newest == "1")
        took_s = time.monotonic() - began_s
        self.claim(
            load.failed == 0,
            "rolled back to version 1, which was still warm",
            f"it answered after {1000 * took_s:.0f} ms",
        )

    # --- what the acts share ----------------------------------------------------------------------

    def publish_rounded(self, first: Version) -> int:
        """Another version: what bf16 leaves of the weights."""
        tensors = load_tensors(self.cluster.blobs().get(first.files[WEIGHTS].key))
        rounded = {
            name: value.to(torch.bfloat16).to(value.dtype) if value.is_floating_point() else value
            for name, value in tensors.items()
        }
        # Its example goes with it no more: other weights, other numbers.
        draft = VersionDraft(
            MODEL,
            first.kind,
            first.signature,
            {WEIGHTS: save_tensors(rounded)},
            bundle=first.bundle,
            entry=first.entry,
            arguments=first.arguments,
        )
        return self.registry.publish(draft).number

    def ready(self) -> set[int]:
        """Replicas that can answer with what is served."""
        plan = self.services.plan(MODEL)
        stable = plan.stable if plan is not None and plan.stable is not None else 0
        return {
            worker
            for worker, one in self.services.replicas(MODEL).items()
            if stable in one.versions and one.versions[stable].state is Loaded.READY
        }

    def served(self, version: int) -> None:
        """Wait until it alone is served, by all replicas."""

        def there() -> bool:
            plan = self.services.plan(MODEL)
            if plan is not None and version in plan.failed:
                raise DemoError(f"version {version} has failed: {plan.failed[version]}")
            if plan is None or (plan.stage, plan.stable) != (RolloutStage.STEADY, version):
                return False
            gateways = self.services.gateways().values()
            applied = all(one.applied.get(MODEL, 0) >= plan.number for one in gateways)
            return applied and len(self.ready()) == REPLICAS

        self.wait(f"version {version} is served", there)

    def accuracy(self) -> float:
        """Of the test pictures, all in one request."""
        x, y = _tests()
        name = self.registry.version(MODEL, 1).signature.inputs[0].name
        line = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE_S)
        line.request("POST", f"/predict/{MODEL}", json.dumps({name: x.tolist()}))
        answer = line.getresponse()
        outputs = json.loads(answer.read())
        line.close()
        if answer.status != http.HTTPStatus.OK:
            raise DemoError(f"the service answered {answer.status}: {outputs}")
        (scores,) = outputs.values()
        return float((torch.tensor(scores).argmax(1) == y).float().mean())

    def wait(self, what: str, there: Callable[[], bool]) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not there():
            if time.monotonic() > until_s:
                raise DemoError(f"not within {PATIENCE_S:g} s: {what}; see holdfast why {MODEL}")
            ctrl_c.pause(0.01)

    def say(self, text: str, style: str = "") -> None:
        ctrl_c.check()
        self._console.print(f"[dim]{time.monotonic() - self._began_s:5.1f} s[/]  ", end="")
        self._console.print(text, style=style, markup=False)

    def claim(self, held: bool, what: str, seen: str) -> None:
        self.good = self.good and held
        self.say(f"{'✔' if held else '✘'} {what}: {seen}", "green" if held else "bold red")


def _tests() -> tuple[torch.Tensor, torch.Tensor]:
    x, y = pictures()[1].tensors
    return x, y


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listener(port: int) -> int:
    """The process that listens on this port."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    wanted = {
        f"socket:[{fields[9]}]"
        for fields in lines
        if fields[1].endswith(f":{port:04X}") and fields[3] == "0A"
    }
    for handle in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(handle.readlink()) in wanted:
                return int(handle.parts[2])
        except OSError:
            continue  # it has ended meanwhile
    raise DemoError(f"nobody listens on port {port}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT_FOLDER)
    parser.add_argument("--port", type=int, help="where the gateway listens; one that is free")
    options = parser.parse_args()
    folder = options.folder.absolute()
    console = Console(highlight=False)
    with ExitStack() as stack:
        try:
            demo = Demo(console, folder, options.port or _free_port(), stack)
            demo.play()
        except KeyboardInterrupt:
            stack.close()
            console.print("interrupted; everything that was started has ended")
            return 130
        except (DemoError, HoldfastError) as error:
            console.print(f"[bold red]the demo failed[/] {error}", markup=True)
            console.print(f"  what it left: {folder}")
            return 1
    console.print()
    if demo.good:
        console.print("[bold green]No request was lost.[/] Nothing is left running. Next:")
        console.print("  docs/serving.md")
    else:
        console.print("[bold red]Not every claim held; see above.[/]")
    return 0 if demo.good else 1


if __name__ == "__main__":
    with ctrl_c.taken():
        sys.exit(main())
