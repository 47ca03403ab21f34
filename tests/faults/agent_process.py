"""An agent as a process that a test can kill, and the workers that it runs.

    python -m tests.faults.agent_process FOLDER away_s port_first port_last [warm]

It reads orders as JSON lines from its standard input and answers each with a line: the snapshot
after it. The orders are the few that the tests need. With an address of a coordination plane in
TEST_PLANE its workers share locks there; with TEST_PRIVATE each has a /tmp of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

from holdfast.agent import privacy
from holdfast.agent.assembly import LocalAgent
from holdfast.agent.launching import Bounds
from holdfast.agent.slots import Machine
from holdfast.coordination import connect
from holdfast.wire.orders import Forget, GiveView, Order, StartWorker, StopWorker, View
from holdfast.wire.reports import NodeFacts
from holdfast.wire.resources import Resources
from tests.servers import port_block
from tests.waiting import eventually

NODE = "node-1"
WAIT_S = 240.0
# A folder whose `sitecustomize` hides torch from every Python that finds it.
WITHOUT_TORCH = Path(__file__).parent / "without_torch"
LIGHT = os.pathsep.join(map(str, (WITHOUT_TORCH, Path(__file__).parents[2])))

T = TypeVar("T")


def machine(ports: range | None = None) -> Machine:
    """What the agent has: of cores and memory enough, and ports of its own."""
    ports = ports or port_block()
    room = Resources(cpu=64.0, memory_bytes=1 << 40)
    return Machine(room, cpus=(), port_first=ports[0], port_last=ports[-1])


def start_order(worker: int, *command: str, job: str = "job", **more: Any) -> StartWorker:
    """Start this; `python` is the interpreter of the tests."""
    line = tuple(sys.executable if word == "python" else word for word in command)
    resources = Resources(cpu=1.0, memory_bytes=more.pop("memory_bytes", 0))
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), **more.pop("environment", {})}
    return StartWorker(NODE, job, worker, "", line, resources, environment, **more)


def no_bundle(name: str) -> Path:
    raise AssertionError(f"no test here has a bundle, but {name!r} was asked for")


async def open_agent(folder: Path, **bounds: Any) -> LocalAgent:
    return await LocalAgent.start(
        folder, NODE, machine(), no_bundle, store="file:/somewhere", bounds=Bounds(**bounds)
    )


def seen(facts: NodeFacts) -> dict[str, Any]:
    return {
        str(one.worker): {
            "phase": one.phase.value,
            "view": one.view,
            "step": one.step,
            "exit": one.exit.kind.value if one.exit else None,
            "detail": one.exit.detail if one.exit else "",
        }
        for one in facts.workers
    }


def _order(kind: str, fields: dict[str, Any]) -> Order | None:
    worker = fields.get("worker", 0)
    if kind == "start":
        more = {name: fields[name] for name in ("job", "queue", "silence_s") if name in fields}
        environment = fields.get("environment", {})
        return start_order(worker, *fields["command"], environment=environment, **more)
    if kind == "stop":
        return StopWorker(NODE, fields.get("job", "job"), worker, fields["notice_s"])
    if kind == "view":
        return GiveView(NODE, "job", worker, View(fields["number"], {worker: (0,)}, 0))
    return Forget(NODE, "job", worker) if kind == "forget" else None


async def _main(folder: Path, away_s: float, ports: range, warm: bool) -> None:
    bounds = Bounds(away_s=away_s, away_notice_s=1.0)
    agent = await LocalAgent.start(
        folder,
        NODE,
        machine(ports),
        no_bundle,
        warm=warm,
        bounds=bounds,
        privacy=privacy.found() if os.environ.get("TEST_PRIVATE") else privacy.Privacy(""),
    )
    sharing = await _share(agent)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    def say(value: object) -> None:
        sys.stdout.write(json.dumps(value) + "\n")
        sys.stdout.flush()

    say(seen(agent.snapshot()))
    while line := await reader.readline():
        fields = json.loads(line)
        order = _order(fields["kind"], fields)
        if order is not None:
            await agent.deliver(fields.get("term", 1), order)
        say(seen(agent.snapshot()))
    if sharing is not None:
        sharing.cancel()
    await agent.close()


async def _share(agent: LocalAgent) -> asyncio.Task[None] | None:
    """Let its workers share what is in the plane, as an agent of a cluster does."""
    address = os.environ.get("TEST_PLANE")
    if not address:
        return None
    agent.coordination.attach(await asyncio.to_thread(connect, address))
    return asyncio.create_task(agent.coordination.run())


class AgentProcess:
    """An agent that can be killed at any time, and started again over the same folder."""

    def __init__(
        self, folder: Path, away_s: float = 180.0, *, warm: bool = False, light: bool = False
    ) -> None:
        """`warm`: with a zygote. `light`: as on a machine without torch; it is ready sooner."""
        self.folder = folder
        self.away_s = away_s
        self.warm = warm
        self.light = light
        self.environment: dict[str, str] = {}
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> dict[str, Any]:
        """Start it; its first snapshot."""
        errors = self.folder.parent / "agent-errors.log"
        with errors.open("ab") as output:
            ports = port_block()
            arguments = [str(self.folder), str(self.away_s), str(ports[0]), str(ports[-1])]
            arguments += ["warm"] if self.warm else []
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.agent_process", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                env={
                    **os.environ,
                    **({"PYTHONPATH": LIGHT} if self.light else {}),
                    **self.environment,
                },
            )
        first = self._read()
        if self.warm:
            self.until_warm()
        return first

    def until_warm(self) -> int:
        """Wait until the zygote can be asked; its process number."""
        until(lambda: _answers(self.folder / "zygote.sock"), bool)
        # The one before it may be about to end.
        (pid,) = until(lambda: zygotes_of(self.folder), lambda found: len(found) == 1)
        return pid

    def _read(self) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise EOFError((self.folder.parent / "agent-errors.log").read_text()[-2_000:])
        found: dict[str, Any] = json.loads(line)
        return found

    def send(self, kind: str, **fields: Any) -> None:
        """Give it an order without waiting for the answer."""
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"kind": kind, **fields}) + "\n")
        self.process.stdin.flush()

    def ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        self.send(kind, **fields)
        return self._read()

    def until(self, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Look until the snapshot is so."""
        return until(lambda: self.ask("look"), condition)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue

    def end(self) -> None:
        """Kill the agent, then all that it has started."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        for pid in (*zygotes_of(self.folder), *processes_of(self.folder)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()


def until(look: Callable[[], T], condition: Callable[[T], object]) -> T:
    """Look until it is so; what was seen then."""
    seen: list[T] = []

    def is_so() -> bool:
        seen[:] = [look()]
        return bool(condition(seen[0]))

    try:
        eventually(is_so, "it is so", WAIT_S)
    except AssertionError as error:
        raise TimeoutError(f"{error}: {seen}") from None
    return seen[0]


def processes_of(folder: Path) -> list[int]:
    """Living processes that have to do with this folder: shims by command, workers by mark."""
    return _with_words(str(folder / "workers").encode())


def zygotes_of(folder: Path) -> list[int]:
    return _with_words(b"holdfast.agent.zygote\0" + str(folder).encode())


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        try:
            line.connect(str(path))
        except OSError:
            return False
        return True


def _with_words(wanted: bytes) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                text = (entry / "cmdline").read_bytes() + b"\0" + (entry / "environ").read_bytes()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if wanted in text and state != "Z":
                found.append(int(entry.name))
    return found


if __name__ == "__main__":
    given = range(int(sys.argv[3]), int(sys.argv[4]) + 1)
    asyncio.run(_main(Path(sys.argv[1]), float(sys.argv[2]), given, "warm" in sys.argv[5:]))
