"""A server as a process that a test can start, kill, pause and wake."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Self

from tests.waiting import eventually

READY_S = 120.0
END_S = 60.0


# Below what the kernel gives to outgoing connections: a port that a server is to have again after
# a kill must not be lent to somebody's connection meanwhile. Nor one that an agent gives to its
# workers (WORKER_PORT_FIRST to WORKER_PORT_LAST): it looks whether a port is free long before its
# worker listens there.
PORTS = (*range(10_000, 16_000), *range(30_000, 32_000))
BLOCK = 50
BLOCKS = range(16_000, 20_000, BLOCK)
_claims: list[IO[bytes]] = []
_blocks: list[int] = []


def free_port() -> int:
    """A port that nobody listens on, and that no other test process is given while this lives."""
    while True:
        port: int = random.SystemRandom().choice(PORTS)
        if _claimed(port, range(port, port + 1)):
            return port


def port_block(number: int = 0) -> range:
    """Ports for what gives them out itself: the `number`-th block that this process has. No other
    test process is given any of them while this lives."""
    tried = 0
    while len(_blocks) <= number:
        first = random.SystemRandom().choice(BLOCKS)
        if first not in _blocks and _claimed(first, range(first, first + BLOCK)):
            _blocks.append(first)
        tried += 1
        assert tried < 100 * len(BLOCKS), "every block of ports is taken"
    return range(_blocks[number], _blocks[number] + BLOCK)


def _claimed(name: int, ports: range) -> bool:
    """Whether nobody listened there, and no other test process has it: now this one has."""
    folder = Path(tempfile.gettempdir()) / "holdfast-test-ports"
    folder.mkdir(exist_ok=True)
    claim = (folder / str(name)).open("wb")
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for port in ports:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
    except OSError:
        claim.close()
        return False
    _claims.append(claim)
    return True


def four_letter_word(port: int, word: str, timeout_s: float = 2.0, host: str = "127.0.0.1") -> str:
    """Ask a server of the ZooKeeper family; an empty string if it does not answer."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as link:
            link.sendall(word.encode())
            link.settimeout(timeout_s)
            chunks = []
            while chunk := link.recv(65_536):
                chunks.append(chunk)
            return b"".join(chunks).decode()
    except OSError:
        return ""


class ServerProcess:
    """A server with a folder and a port of its own. Its output goes to `folder/output.log`."""

    def __init__(self, folder: Path, port: int | None = None, *, host: str = "127.0.0.1") -> None:
        self.folder = folder
        self.host = host
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = port or free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def hosts(self) -> str:
        """What a client is given."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None, "not started"
        return self.process.pid

    def command(self) -> Sequence[str]:
        """The command line that starts it."""
        raise AssertionError("a server says how it is started")

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def ready(self) -> bool:
        """Whether it answers clients."""
        return four_letter_word(self.port, "srvr", host=self.host).startswith("Zookeeper version")

    def launch(self) -> None:
        """Start the process without waiting for it."""
        with (self.folder / "output.log").open("ab") as output:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.environment(),
                start_new_session=True,
            )

    def wait_ready(self, timeout_s: float = READY_S) -> None:
        def ready() -> bool:
            if self.ready():
                return True
            if self.process is None or self.process.poll() is not None:
                raise RuntimeError(f"the server ended while it started:\n{self.output()}")
            return False

        try:
            eventually(ready, "the server is ready", timeout_s)
        except AssertionError as error:
            raise RuntimeError(f"{error}:\n{self.output()}") from None

    def start(self) -> Self:
        self.launch()
        self.wait_ready()
        return self

    def output(self) -> str:
        return (self.folder / "output.log").read_text(errors="replace")[-4_000:]

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it with SIGKILL; it gets no chance to tidy up."""
        self._end(signal.SIGKILL)

    def stop(self) -> int | None:
        """End it politely; its exit status."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int | None:
        process, self.process = self.process, None
        if process is None:
            return None
        if process.poll() is None:
            process.send_signal(number)
            if number is not signal.SIGKILL:
                process.send_signal(signal.SIGCONT)
        try:
            return process.wait(timeout=END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait(timeout=END_S)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()
