"""Hosts with addresses of their own, whose links can be cut and slowed: network namespaces.

Everything lies in namespaces that are named after the run: a switch with a bridge, and a host with
one end of a pair of cables each. Interfaces, routes and addresses of the machine itself are never
touched. `close` removes all of it, and `sweep` what runs that were killed have left.

- A cut from one host to another: the sender has a wrong hardware address for the other. What it
  sends goes nowhere, without an error, as with a cable that was pulled somewhere on the way.
- A slow link: `tbf` at both ends of the host's cable.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from holdfast.system.process_identity import start_ticks
from tests.proofs.control.processes import strike

PREFIX: Final = "hfchaos-"
# In the environment of everything that a run starts. (Agents hand nothing on that begins with our
# own name.)
MARK: Final = "CHAOS_RUN_OF_HOLDFAST"
_SWITCH: Final = "switch"
_NOWHERE: Final = "02:00:00:00:00:01"  # nobody's address
_FOLDER: Final = Path("/run/netns")
_CLONE_NEWNET: Final = 0x40000000
# Enough for a packet of the largest size; what waits longer than this is dropped.
_QUEUE: Final = ("burst", "16kb", "latency", "300ms")
COMMAND_S: Final = 30.0
# A process that was killed is gone within this, however busy the machine is.
GONE_S: Final = 60.0


class Network(Protocol):
    """Where the hosts are, and what can be done to their links."""

    links: bool  # whether every link can be cut and slowed

    def enter(self) -> None:
        """This process becomes the director's host."""

    def address(self, host: str) -> str: ...

    def plane(self, host: str, servers: Sequence[tuple[str, int]]) -> str:
        """The coordination servers as this host reaches them: `host:port,…`."""

    def within(self, host: str) -> list[str]:
        """What stands before a command that runs on this host."""

    def cut(self, sender: str, receiver: str) -> None:
        """Nothing comes from one to the other any more. Twice cut is twice to be healed."""

    def heal(self, sender: str, receiver: str) -> None: ...

    def slow(self, host: str, rate: str) -> None: ...

    def quicken(self, host: str) -> None: ...

    def close(self) -> None: ...


def run_id() -> str:
    """This process, as nobody else is ever called."""
    return f"{os.getpid()}-{start_ticks(os.getpid())}"


def missing() -> str:
    """Why there can be no namespaces here, and what helps; empty: there can."""
    for program, package in (("ip", "iproute2"), ("tc", "iproute2"), ("nsenter", "util-linux")):
        if shutil.which(program) is None:
            return f"{program} is not installed (as root: apt-get install -y {package})"
    if os.geteuid() != 0:
        return "only root makes network namespaces (sudo)"
    probe = f"{PREFIX}{run_id()}-probe"
    made = _run(["ip", "netns", "add", probe], check=False)
    if made.returncode != 0:
        return f"this machine makes no network namespaces: {made.stderr.strip()}"
    try:
        cable = ["link", "add", "one", "type", "veth", "peer", "name", "two"]
        laid = _run(["ip", "-n", probe, *cable], check=False)
    finally:
        _run(["ip", "netns", "del", probe], check=False)
    return f"this machine has no virtual cables: {laid.stderr.strip()}" if laid.returncode else ""


class Namespaces:
    """The real one: a namespace for each host."""

    links = True

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = list(hosts)
        self._prefix = f"{PREFIX}{run_id()}-"
        self._cuts: Counter[tuple[str, str]] = Counter()
        self._slow: Counter[str] = Counter()
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        switch = self._name(_SWITCH)
        _run(["ip", "netns", "add", switch])
        _batch(switch, ["link add bridge type bridge", "link set bridge up"])
        for number, host in enumerate(self._hosts):
            name = self._name(host)
            _run(["ip", "netns", "add", name])
            cable = f"link add p{number} type veth peer name eth0 netns {name}"
            _batch(switch, [cable, f"link set p{number} master bridge up"])
            inside = [f"addr add {self.address(host)}/24 dev eth0", "link set eth0 up"]
            _batch(name, ["link set lo up", *inside])

    def _name(self, host: str) -> str:
        return self._prefix + host

    def enter(self) -> None:
        with (_FOLDER / self._name(self._hosts[0])).open() as handle:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(handle.fileno(), _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")

    def address(self, host: str) -> str:
        return f"10.77.0.{self._hosts.index(host) + 1}"

    def plane(self, _host: str, servers: Sequence[tuple[str, int]]) -> str:
        return ",".join(f"{self.address(server)}:{port}" for server, port in servers)

    def within(self, host: str) -> list[str]:
        # Not `ip netns exec`: that hides /sys, and with it the control groups.
        return ["nsenter", f"--net={_FOLDER / self._name(host)}", "--"]

    def cut(self, sender: str, receiver: str) -> None:
        self._cuts[sender, receiver] += 1
        if self._cuts[sender, receiver] == 1:
            wrong = f"neigh replace {self.address(receiver)} lladdr {_NOWHERE}"
            _batch(self._name(sender), [f"{wrong} dev eth0 nud permanent"])

    def heal(self, sender: str, receiver: str) -> None:
        self._cuts[sender, receiver] -= 1
        if self._cuts[sender, receiver] == 0:
            _batch(self._name(sender), [f"neigh del {self.address(receiver)} dev eth0"])

    def slow(self, host: str, rate: str) -> None:
        self._slow[host] += 1
        for end in self._ends(host):
            _run(
                ["tc", *end[:2], "qdisc", "replace", *end[2:], "root", "tbf", "rate", rate, *_QUEUE]
            )

    def quicken(self, host: str) -> None:
        self._slow[host] -= 1
        if self._slow[host] == 0:
            for end in self._ends(host):
                _run(["tc", *end[:2], "qdisc", "del", *end[2:], "root"])

    def _ends(self, host: str) -> tuple[list[str], list[str]]:
        port = f"p{self._hosts.index(host)}"
        return (
            ["-n", self._name(host), "dev", "eth0"],
            ["-n", self._name(_SWITCH), "dev", port],
        )

    def close(self) -> None:
        for host in (_SWITCH, *self._hosts):
            if (_FOLDER / self._name(host)).exists():
                _run(["ip", "netns", "del", self._name(host)])


# --- what is left ---------------------------------------------------------------------------------


def marked(run: str = "") -> list[tuple[int, int, str]]:
    """Living processes of that run, or of any: number, start, and the run."""
    wanted = f"{MARK}={run}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        with suppress(OSError):
            for word in (folder / "environ").read_bytes().split(b"\0"):
                ticks = start_ticks(int(folder.name)) if word.startswith(wanted) else None
                if ticks is not None and (not run or word == wanted):
                    found.append((int(folder.name), ticks, word.partition(b"=")[2].decode()))
    return found


def words_of(pid: int) -> str:
    """A process in words."""
    try:
        words = (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    except OSError:
        words = "which has ended"
    return f"process {pid} ({words.strip()[:160]})"


def end_marked(run: str) -> None:
    """SIGKILL to all that this run has started, and to what that started, until nobody is left."""
    until_s = time.monotonic() + GONE_S
    while (left := marked(run)) and time.monotonic() < until_s:
        for pid, ticks, _ in left:
            end(pid, ticks)


def end(pid: int, ticks: int) -> bool:
    """SIGKILL to exactly this process, and its end is waited for; whether it was there."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not strike(pid, ticks, signal.SIGKILL):
            return False
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.poll(1000 * GONE_S)
    finally:
        os.close(handle)
    return True


def lives(run: str) -> bool:
    """Whether the process of that run is there."""
    pid, _, ticks = run.partition("-")
    return pid.isdecimal() and str(start_ticks(int(pid))) == ticks


def sweep() -> list[str]:
    """Remove what runs have left that were killed; what it was, in words."""
    words = []
    for pid, ticks, run in marked():
        if not lives(run) and end(pid, ticks):
            words.append(f"process {pid}")
    if shutil.which("ip") is not None and os.geteuid() == 0:
        for name in names():
            if not lives("-".join(name.removeprefix(PREFIX).split("-")[:2])):
                _run(["ip", "netns", "del", name], check=False)
                words.append(f"namespace {name}")
    return words


def names() -> list[str]:
    """The namespaces of all runs that are there."""
    return [path.name for path in _FOLDER.glob(f"{PREFIX}*")] if _FOLDER.is_dir() else []


def _batch(namespace: str, lines: Iterable[str]) -> None:
    _run(["ip", "-n", namespace, "-batch", "-"], "\n".join(lines) + "\n")


def _run(
    command: Sequence[str], given: str = "", *, check: bool = True
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, check=False, timeout=COMMAND_S
    )
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()} {given.strip()}")
    return done
