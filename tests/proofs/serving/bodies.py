"""Bodies of 200 MB, over HTTP and gRPC, beside small requests: all answered, and nobody is larger
afterwards.

    python -m tests.proofs.serving.bodies [--megabytes 200] [--times 3]

First with the usual limit: each is refused, without being kept. Then the limit is raised by the
command that the refusal names: each is answered, the right way, also where all of it comes back.
No small request beside them fails. At the end gateway and replicas have the memory that they had
before; Envoy has at most what it may hold, and after some minutes what it had before.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from bench.serving.replies import Reply, Shot, anything
from bench.serving.steady import Result, Steady
from holdfast.launch import processes
from holdfast.serve.gateway.resources import ENVOY_HELD_BYTES_MAX
from tests.proofs.running import Words, conducted, hear_signals, say
from tests.proofs.serving.cluster import ServiceCluster, Violation
from tests.proofs.serving.large import CODE, MODEL, SIGNATURE, Answered, Array, Client, Refusal
from tests.proofs.serving.large import PATIENCE_S as ANSWER_S
from tests.proofs.serving.memory import MIB, Memory, Watched, allocated_bytes
from tests.proofs.serving.models import publish_function

REPLICAS: Final = 2
TIMEOUT_S: Final = 120.0
SMALL: Final = [1, 2, 3]
# What a process may have more than before: heaps of threads that were started meanwhile.
MORE_BYTES: Final = 24 * MIB
# What is refused at 16 MiB may be kept so far, by each who passes it on, three times one after the
# other; that is far less than a body.
KEPT_BYTES: Final = 64 * MIB
BACK_S: Final = 60.0
# The allocator of Envoy looks back for five minutes; and it keeps large pages of which something is
# still in use.
ENVOY_BACK_S: Final = 600.0
ENVOY_MORE_BYTES: Final = 48 * MIB
# What Envoy itself has in use may be more by connections that are kept, and what it counts.
ENVOY_USED_MORE_BYTES: Final = 4 * MIB

Ask = Callable[[Array], Answered | Refusal]


def right(reply: Reply) -> str:
    """The check of each small answer."""
    wrong = anything(reply)
    if wrong:
        return wrong
    found = json.loads(reply.body)["crc"]
    return "" if found == [zlib.crc32(bytes(SMALL))] else f"the answer is {found}"


@dataclass
class Bodies:
    """One run. `patient`: wait until Envoy, too, has only what it had before."""

    folder: Path
    say: Callable[[str], None]
    size: int = 200_000_000
    times: int = 3
    rate: float = 50.0
    patient: bool = True
    used: int = 0  # by Envoy itself
    told: list[str] = field(default_factory=list)
    total: Result = field(default_factory=Result)

    def run(self) -> None:
        with ServiceCluster(self.folder, 1) as served:
            code = self.folder / "bodies-code"
            publish_function(served.cluster, served.session, code, MODEL, CODE, SIGNATURE)
            words = ("--replicas", str(REPLICAS), "--cpu", "0.5", "--timeout", f"{TIMEOUT_S:g}s")
            served.command("serve", MODEL, *words)
            client = Client(served.address)
            shot = Shot(f"/predict/{MODEL}", json.dumps({"x": SMALL}).encode())
            with Steady(served.address, [shot], self.rate, right, timeout_s=TIMEOUT_S) as load:
                try:
                    self._play(served, client)
                finally:
                    client.close()
                self.total = load.stop()
        if self.total.failed:
            raise Violation(f"{self.total.failed} small ones failed: {dict(self.total.reasons)}")

    def _play(self, served: ServiceCluster, client: Client) -> None:
        x: Array = np.random.default_rng(17).integers(0, 256, self.size, dtype=np.uint8)
        self._answered("first, small ones", [client.by_http, client.by_grpc], x[:1000])
        others, envoy = _memory(served)
        (self.used,) = _used(self.folder)
        for memory in (others, envoy):
            memory.begin()
        self._refused(client, x)
        self._tell_refused(others, envoy)
        most = (self.size + 8 * MIB) // MIB + 1
        served.command("serve", MODEL, "--body-max", f"{most}MiB")
        for what, ask in {
            "HTTP": client.by_http,
            "HTTP in chunks": lambda x: client.by_http(x, chunked=True),
            "HTTP, there and back": lambda x: client.by_http(x, back=True),
            "gRPC": client.by_grpc,
            "gRPC, there and back": lambda x: client.by_grpc(x, back=True),
        }.items():
            self._answered(what, [ask] * self.times, x)
        self._together([client.by_http, client.by_grpc], x)
        self._await_back(others, envoy)

    def _refused(self, client: Client, x: Array) -> None:
        for what, found in (
            ("HTTP", client.by_http(x)),
            ("HTTP in chunks", client.by_http(x, chunked=True)),
            ("gRPC", client.by_grpc(x)),
        ):
            wanted = "RESOURCE_EXHAUSTED" if what == "gRPC" else "413"
            if not isinstance(found, Refusal) or found.status != wanted:
                raise Violation(f"{what}: not refused with {wanted} but {found}")
            if what != "gRPC" and "--body-max" not in found.words:
                raise Violation(f"{what}: nothing says how to raise the limit: {found.words}")

    def _answered(self, what: str, asked: list[Ask], x: Array) -> None:
        found = [ask(x) for ask in asked]
        wrong = [one for one in found if not isinstance(one, Answered) or not one.right]
        if wrong:
            raise Violation(f"{what}: {wrong[0]}")
        slowest = max(one.took_s for one in found if isinstance(one, Answered))
        self._say(f"{what}: {len(found)} of {len(x) / 1e6:g} MB right, at most {slowest:.2f} s")

    def _together(self, asked: list[Ask], x: Array) -> None:
        """At once, each from a client of its own."""
        wrong: list[str] = []

        def ask(one: Ask) -> None:
            try:
                self._answered("at once", [one], x)
            except Exception as error:
                wrong.append(repr(error))

        threads = [threading.Thread(target=ask, args=(one,)) for one in asked]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * ANSWER_S)
        if wrong:
            raise Violation(f"at once: {wrong}")

    def _await_back(self, others: Memory, envoy: Memory) -> None:
        took_s = others.await_back(MORE_BYTES, BACK_S)
        self._say(f"after {took_s:.0f} s: {others.told()}")
        (one,) = envoy.processes
        held = max(0, ENVOY_HELD_BYTES_MAX - one.before)
        took_s = envoy.await_back(held + MORE_BYTES, BACK_S)
        self._say(f"after {took_s:.0f} s more: {envoy.told()}")
        if not self.patient:
            return
        took_s = envoy.await_back(ENVOY_MORE_BYTES, ENVOY_BACK_S)
        self._say(f"after {took_s:.0f} s more: {envoy.told()}")
        before = self.used
        (self.used,) = _used(self.folder)
        self._say(f"of it in use by Envoy: {before / MIB:.1f} -> {self.used / MIB:.1f} MiB")
        if self.used > before + ENVOY_USED_MORE_BYTES:
            raise Violation("Envoy still uses what it needed for the bodies")

    def _tell_refused(self, others: Memory, envoy: Memory) -> None:
        """Nobody has kept what was refused."""
        for memory in (others, envoy):
            memory.end()
            for one in memory.processes:
                if one.peak > one.before + KEPT_BYTES:
                    raise Violation(f"it was refused, and yet it was kept: {one.told()}")
        self._say(f"refused: {envoy.told()}; {others.told()}")

    def _say(self, line: str) -> None:
        self.told.append(line)
        self.say(line)

    def table(self) -> str:
        total = self.total
        small = f"{total.sent:,} small requests beside them, {total.failed} failed"
        times = ", ".join(f"p{part:g} {total.p_ms(part):.0f} ms" for part in (50, 99, 100))
        return "\n".join([*self.told, f"{small}; {times}"])


def _used(folder: Path) -> list[int]:
    """What each Envoy below has in use."""
    return [allocated_bytes(admin) for admin in sorted(folder.rglob("admin.sock"))]


def _memory(served: ServiceCluster) -> tuple[Memory, Memory]:
    """Of the gateway's process and the replicas, and of Envoy."""
    pids = {one.kind: one.pid for one in processes.processes(served.cluster)}
    replicas = served.listeners(MODEL)
    if len(replicas) != REPLICAS:
        raise Violation(f"{len(replicas)} replicas are there, not {REPLICAS}")
    others = [Watched("gateway", pids["gateway"])]
    others += [Watched(f"replica {worker}", pid) for worker, pid in replicas.items()]
    return Memory(others), Memory([Watched("Envoy", pids["envoy"])])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=Bodies.size / 1e6)
    parser.add_argument("--times", type=int, default=Bodies.times, help="each kind so often")
    given = parser.parse_args()
    hear_signals()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bodies-"))
    size = round(given.megabytes * 1e6)
    campaign = Bodies(folder, say, size, given.times)
    command = f"python -m tests.proofs.serving.bodies --megabytes {given.megabytes:g}"
    words = Words(
        campaign.table, command, "all were answered, and memory came back (of Envoy all but 48 MiB)"
    )
    return conducted(campaign.run, folder, words, Violation)


if __name__ == "__main__":
    sys.exit(main())
