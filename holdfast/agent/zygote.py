"""A process that has imported torch and forks workers: a new one computes within milliseconds.

    python -m holdfast.agent.zygote FOLDER AWAY_S       FOLDER is the agent's

Its agent starts it, and it outlives the agent as the workers do: the next agent goes on with it.
It imports, says so on its standard output, and then only forks: it holds no thread, no CUDA, no
pool of OpenMP, and nothing of any job. Each fork becomes the shim of one worker, and that forks
the worker. Both go on when the zygote ends. It

- listens on a socket in the agent's folder: one connection, one request, one answer;
- is the only one of its folder: a lock decides;
- refuses what would not be as `python` does it; the agent then starts that worker cold;
- ends when it is asked to, or when no agent has come back for `AWAY_S`.
"""

from __future__ import annotations

import fcntl
import gc
import hashlib
import importlib
import importlib.util
import json
import os
import pkgutil
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from holdfast.agent import becoming, processes
from holdfast.agent.events import Identity
from holdfast.agent.shim import Shim
from holdfast.system import logs
from holdfast.wire.limits import AGENT_LOOK_S, ZYGOTE_ANSWER_S, ZYGOTE_MESSAGE_BYTES_MAX
from holdfast.wire.plain import known_fields

SOCKET_NAME: Final = "zygote.sock"
READY: Final = b"ready\n"
LOCK_NAME: Final = "zygote.lock"  # who holds it is written in it
_HEAVY: Final = ("torch", "torch._dynamo", "torch.distributed")
_OURS: Final = ("holdfast",)
# What a replica is made of, by name: it stands above an agent.
_SERVING: Final = ("holdfast.serve.replica.main",)

Launch = Mapping[str, Any]


def fingerprint() -> str:
    """The interpreter and our own code, by name, size and time: what a zygote has imported must
    be what a cold worker would import."""
    digest = hashlib.sha256(sys.executable.encode())
    for package in _OURS:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for path in sorted(Path(folder).rglob("*.py")):
                found = path.stat()
                digest.update(f"{path}:{found.st_size}:{found.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]


def warm_up() -> None:
    """Import what workers need, and hold nothing that a fork would break. What is left out here is
    imported by a worker while the others wait for its first step."""
    gc.disable()
    logs.import_now()
    if importlib.util.find_spec("torch"):
        for name in _HEAVY:
            importlib.import_module(name)
        torch = sys.modules["torch"]
        # The first optimizer of a process imports more, for more than a second.
        torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    train = importlib.import_module("holdfast.train")
    found = pkgutil.walk_packages(train.__path__, "holdfast.train.")
    for name in (*(module.name for module in found), *_SERVING):
        try:
            importlib.import_module(name)
        except ImportError as error:  # without torch some of them cannot be; a worker will say so
            sys.stderr.write(f"{name} is not imported: {error}\n")
    gc.collect()
    gc.freeze()
    gc.enable()
    # OpenBLAS has made threads; it ends them at the first fork, and makes new ones when needed.
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)


class Zygote:
    """It serves from `serve` on, in the one thread that it has."""

    def __init__(self, folder: Path, away_s: float, code: str, own_path: list[str]) -> None:
        self._folder = folder
        self._away_s = away_s
        self._code = code
        self._own_path = own_path
        self._ended = False
        self._agent = -1
        self._away_since_s = time.monotonic()
        self._wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._listener = _listen(folder)
        self._poll = select.poll()
        for handle in (self._wake, self._listener.fileno()):
            self._poll.register(handle, select.POLLIN)

    def serve(self) -> Launch | None:
        """Fork what is asked for, until it ends (None). Also returns in each worker's process: what
        that is to run."""
        self._attach()
        while not self._ended:
            for handle, _ in self._poll.poll(self._patience_ms()):
                if handle == self._wake:
                    self._signalled(os.read(self._wake, 4096))
                elif handle == self._agent:
                    self._lost_agent()
                elif (launch := self._answer()) is not None:
                    return launch
            if self._agent < 0:
                self._attach()
                away_s = time.monotonic() - self._away_since_s
                self._ended |= self._agent < 0 and away_s >= self._away_s
        (self._folder / SOCKET_NAME).unlink(missing_ok=True)
        return None

    def _patience_ms(self) -> int | None:
        return int(AGENT_LOOK_S * 1000) if self._agent < 0 else None

    def _signalled(self, numbers: bytes) -> None:
        self._ended |= signal.SIGTERM in numbers
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    # --- its agent -------------------------------------------------------------------------------

    def _attach(self) -> None:
        """Watch the agent of this folder, if there is one."""
        with suppress(OSError, ValueError, TypeError):
            fields = json.loads((self._folder / "agent").read_bytes())
            held = processes.hold(Identity(**known_fields(Identity, fields)))
            if held is not None:
                self._agent = held
                self._poll.register(held, select.POLLIN)

    def _lost_agent(self) -> None:
        self._poll.unregister(self._agent)
        os.close(self._agent)
        self._agent, self._away_since_s = -1, time.monotonic()

    # --- requests --------------------------------------------------------------------------------

    def _answer(self) -> Launch | None:
        """Answer one request. In the process of a worker: what it is to run."""
        line, _ = self._listener.accept()
        with line:
            line.settimeout(ZYGOTE_ANSWER_S)
            try:
                request = json.loads(line.recv(ZYGOTE_MESSAGE_BYTES_MAX))
                folder = str(request.get("fork", ""))
                if folder:
                    answer, launch = self._fork(folder, line)
                    if launch is not None:
                        return launch
                else:
                    answer = {"code": self._code, "identity": list(_identity(os.getpid()))}
                line.send(json.dumps(answer).encode())
            except (OSError, ValueError, KeyError) as error:
                sys.stderr.write(f"a request was not answered: {error!r}\n")
        return None

    def _fork(self, folder: str, line: socket.socket) -> tuple[dict[str, Any], Launch | None]:
        launch: Launch = json.loads((Path(folder) / "launch.json").read_bytes())
        reason = _threads() or becoming.reason_not_to_fork(
            launch["program"], launch["environment"], launch["cwd"]
        )
        if reason:
            return {"refused": reason}, None
        # Blocked until the shim has its own handlers: nothing that is sent to it early is lost.
        every = signal.valid_signals()
        signal.pthread_sigmask(signal.SIG_BLOCK, every)
        pid = os.fork()
        if not pid:
            self._listener.detach()
            line.detach()
            _be_shim(folder)  # returns in the worker that it has forked
            return {}, launch
        signal.pthread_sigmask(signal.SIG_UNBLOCK, every)
        return {"identity": list(_identity(pid))}, None


def _identity(pid: int) -> Identity:
    """Of a process that was not waited for: it is there, alive or not."""
    return processes.identify(pid) or Identity(pid, 0, "")


def _threads() -> str:
    names = [name.name for name in Path("/proc/self/task").iterdir()]
    return "" if len(names) == 1 else f"the zygote has {len(names)} threads"


def _be_shim(folder: str) -> None:
    """Be the shim of the worker in `folder`, to its end; returns only in the worker."""
    try:
        signal.set_wakeup_fd(-1)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.setsid()
        words = os.open(f"{folder}/shim.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(words, 1)
        os.dup2(words, 2)
        os.close(words)
        os.environ.clear()
        becoming.retitle(["holdfast-shim", folder], {})
        status = Shim(folder, warm=True).run()
    except BaseException:
        traceback.print_exc()
        status = 1
    if status is not None:
        sys.stderr.flush()
        os._exit(status)


def _listen(folder: Path) -> socket.socket:
    """Appears when it is ready to be asked; one that a dead zygote left behind is replaced."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        (folder / SOCKET_NAME).unlink(missing_ok=True)
        listener.bind(socket_path(handle))
        listener.listen(64)
    finally:
        os.close(handle)
    return listener


def socket_path(folder: int) -> str:
    """A short path of the socket in the open `folder`."""
    return f"/proc/self/fd/{folder}/{SOCKET_NAME}"


def main(arguments: list[str]) -> int | str | None:
    """The status of the zygote, or of the worker that this process has become."""
    folder, away_s = Path(arguments[0]), float(arguments[1])
    lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.stderr.write("another zygote has this folder\n")
        return 1
    os.ftruncate(lock, 0)
    os.write(lock, json.dumps(_identity(os.getpid())).encode())
    code = fingerprint()
    foreign = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    # Without what `-m` and the agent's own environment have put in front.
    own_path = [entry for entry in sys.path[1:] if entry not in foreign]
    warm_up()
    zygote = Zygote(folder, away_s, code, own_path)
    os.write(1, READY)
    os.dup2(2, 1)
    launch = zygote.serve()
    if launch is None:
        os._exit(0)
    becoming.become(launch, own_path)
    return becoming.run(launch)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
