"""Processes that need not wait for Python's imports: forked from one that has made them.

    forker = Forker("tests.servers.commands")
    forked = forker.fork({"words": ["jobs"]}, env=…, cwd=…, out=…, err=…)

The module says what is prepared once, `prepare()`, and what a forked process becomes,
`become(order)`. Each is a process of its own, with its own environment, folder and outputs.
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from holdfast.system.readable import await_readable

ROOT: Final = Path(__file__).parents[2]
# How long it may take to come to its feet: importing torch takes seconds of a core, and minutes
# where twenty processes share one.
START_S: Final = 600.0
ORDER_BYTES_MAX: Final = 1 << 20
_OUTPUTS: Final = 2


# --- the side of the tests ----------------------------------------------------------------------


class Forked:
    """A forked process, with what a test needs of a `Popen`."""

    def __init__(self, pid: int, line: io.RawIOBase) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._line = line
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        status = self._ended(timeout)
        assert status is not None, f"process {self.pid} does not end"
        return status

    def _ended(self, within_s: float | None) -> int | None:
        with self._lock:
            if self.returncode is None and self._has_ended(within_s):
                self.returncode = json.loads(self._line.readline())["status"]
                self._line.close()
            return self.returncode

    def _has_ended(self, within_s: float | None) -> bool:
        said = select.poll()  # a process with thousands of files is no place for `select`
        said.register(self._line, select.POLLIN)
        return bool(said.poll(None if within_s is None else within_s * 1000))

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forker:
    """The process that forks. It ends with the one that made it, whatever becomes of that."""

    def __init__(self, module: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="holdfast-forker-")
        self._address = str(Path(self._folder.name) / "line")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(self._address)
            listener.listen(64)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.servers.forking", module, str(listener.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
                pass_fds=(listener.fileno(),),
            )

    def fork(
        self,
        order: Mapping[str, Any],
        *,
        env: Mapping[str, str],
        cwd: Path | str,
        outputs: tuple[int, int],
        given: str = "",
        imports: Sequence[str] = (),
    ) -> Forked:
        """A process that becomes what the order says. `imports`: modules that it needs, imported
        once for all that come after it."""
        about = {"env": dict(env), "cwd": str(cwd), "given": given, "imports": list(imports)}
        text = json.dumps({**about, "order": dict(order)}).encode() + b"\n"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(START_S)
            line.connect(self._address)
            sent = socket.send_fds(line, [text], outputs)
            line.sendall(text[sent:])
            heard = line.makefile("rb", buffering=0)  # or a select would not see what is held
            pid = json.loads(heard.readline())["pid"]
            line.settimeout(None)
        return Forked(pid, heard)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(START_S)
        self._folder.cleanup()


_shared: dict[str, Forker] = {}
_shared_lock = threading.Lock()


def shared(module: str) -> Forker:
    """The one of this process for that module: it lives as long as the process."""
    with _shared_lock:
        if module not in _shared:
            _shared[module] = Forker(module)
        return _shared[module]


# --- the process that forks ---------------------------------------------------------------------


def main(module: Any, listener: socket.socket) -> None:
    """Fork for each connection, until whoever started this has gone."""
    module.prepare()
    gc.freeze()  # what is there stays there: its pages are not touched by each child's collector
    ended, told = os.pipe()
    os.set_blocking(told, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(told)
    lines: dict[int, socket.socket] = {}
    while True:
        ready = await_readable([listener.fileno(), ended, sys.stdin.fileno()])
        if sys.stdin.fileno() in ready:
            for pid in lines:  # nobody is left to end them
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            return
        if ended in ready:
            os.read(ended, 4096)
            _reap(lines)
        if listener.fileno() not in ready:
            continue
        line, _ = listener.accept()
        about, fds = _received(line)
        for name in about["imports"]:
            importlib.import_module(name)
        if (pid := os.fork()) == 0:
            signal.set_wakeup_fd(-1)
            for held in (listener, line, *lines.values()):
                held.close()
            for pipe in (ended, told):
                os.close(pipe)
            _stand(about, fds)
            module.become(about["order"])
            os._exit(0)
        for fd in fds:
            os.close(fd)
        lines[pid] = line
        line.sendall(json.dumps({"pid": pid}).encode() + b"\n")


def _received(line: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """What is to be done, and the two outputs."""
    room = socket.CMSG_LEN(_OUTPUTS * array.array("i").itemsize)
    data, ancillary, _, _ = line.recvmsg(ORDER_BYTES_MAX, room)
    fds = array.array("i")
    for _, _, held in ancillary:
        fds.frombytes(held)
    while not data.endswith(b"\n"):
        data += line.recv(ORDER_BYTES_MAX)
    return json.loads(data), list(fds)


def _stand(about: dict[str, Any], fds: list[int]) -> None:
    """In the forked process: where and as whom it stands."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for target, source in zip((1, 2), fds, strict=True):
        os.dup2(source, target)
        os.close(source)
    with tempfile.TemporaryFile() as given:
        given.write(about["given"].encode())
        given.seek(0)
        os.dup2(given.fileno(), 0)
    os.environ.clear()
    os.environ.update(about["env"])
    os.chdir(about["cwd"])


def _reap(lines: dict[int, socket.socket]) -> None:
    """Say of each that has ended how."""
    while lines:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with lines.pop(pid) as line, contextlib.suppress(OSError):
            code = os.waitstatus_to_exitcode(status)
            line.sendall(json.dumps({"status": code}).encode() + b"\n")


if __name__ == "__main__":
    main(importlib.import_module(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])))
