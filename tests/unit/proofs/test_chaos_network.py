"""The hosts of the chaos run: links that are cut carry nothing, and nothing is left afterwards.

Namespaces are tried where the machine and the user allow them; the loopback always.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.proofs.chaos import network
from tests.proofs.chaos.loopback import Loopback
from tests.proofs.chaos.network import Namespaces, missing
from tests.servers import free_port
from tests.waiting import eventually

HOSTS = ("director", "a", "b")
NO_NAMESPACES = missing()
KINDS = ["loopback"] if NO_NAMESPACES else ["loopback", "namespaces"]
# Says what it hears, in upper case, on one connection after the other.
SERVER = """
import contextlib, socket, sys
with socket.create_server((sys.argv[1], int(sys.argv[2]))) as listener:
    print("ready", flush=True)
    while True:
        link, _ = listener.accept()
        with link, contextlib.suppress(OSError):
            while data := link.recv(100):
                link.sendall(data.upper())
"""
# Asks once; its exit code says whether there was an answer.
CLIENT = """
import socket, sys
host, _, port = sys.argv[1].rpartition(":")
try:
    with socket.create_connection((host, int(port)), timeout=float(sys.argv[2])) as link:
        link.sendall(b"hello")
        sys.exit(link.recv(100) != b"HELLO")
except OSError:
    sys.exit(1)
"""


class World:
    """Host b has a server; host a asks it."""

    def __init__(self, kind: str) -> None:
        self.net = Loopback(HOSTS) if kind == "loopback" else Namespaces(HOSTS)
        self.port = free_port()
        where = [self.net.address("b"), str(self.port)]
        command = [*self.net.within("b"), sys.executable, "-c", SERVER, *where]
        self.server = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.server.stdout is not None
        assert self.server.stdout.readline() == b"ready\n"
        self.target = self.net.plane("a", [("b", self.port)])

    def asks(self, timeout_s: float = 20.0) -> bool:
        command = [*self.net.within("a"), sys.executable, "-c", CLIENT]
        return subprocess.run([*command, self.target, str(timeout_s)], check=False).returncode == 0

    def close(self) -> None:
        self.server.kill()
        self.server.communicate()
        self.net.close()


def output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@contextmanager
def world(kind: str) -> Iterator[World]:
    made = World(kind)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_link_carries_nothing_in_that_direction_until_it_is_healed(kind: str) -> None:
    with world(kind) as there:
        assert there.asks()
        for sender, receiver in (("a", "b"), ("b", "a")):
            there.net.cut(sender, receiver)
            there.net.cut(sender, receiver)
            assert not there.asks(timeout_s=0.5)
            there.net.heal(sender, receiver)
            assert not there.asks(timeout_s=0.5), "it was cut twice"
            there.net.heal(sender, receiver)
            assert there.asks()


def test_on_the_loopback_only_what_goes_through_a_relay_can_be_cut() -> None:
    net = Loopback(HOSTS)
    try:
        with pytest.raises(ValueError, match="nothing is cut"):
            net.cut("a", "b")
        with pytest.raises(ValueError, match="cannot be slowed"):
            net.slow("a", "1mbit")
    finally:
        net.close()


def test_what_was_sent_while_a_relay_was_cut_arrives_when_it_is_healed() -> None:
    with world("loopback") as there:
        host, _, port = there.target.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=30.0) as link:
            there.net.cut("a", "b")
            link.sendall(b"late")
            heard: list[bytes] = []
            listener = threading.Thread(target=lambda: heard.append(link.recv(100)))
            listener.start()
            listener.join(0.3)
            assert heard == []
            there.net.heal("a", "b")
            listener.join(30.0)
            assert heard == [b"LATE"]


if not NO_NAMESPACES:

    def test_a_slow_link_is_slow_at_both_ends_and_then_as_before() -> None:
        with world("namespaces") as there:

            def queues() -> str:
                said = ""
                for host, device in (("a", "eth0"), ("switch", "p1")):
                    name = f"{network.PREFIX}{network.run_id()}-{host}"
                    command = ["tc", "-n", name, "qdisc", "show", "dev", device]
                    said += output(command)
                return said

            there.net.slow("a", "256kbit")
            there.net.slow("a", "512kbit")
            assert queues().count("512Kbit") == 2
            assert there.asks()
            there.net.quicken("a")
            assert queues().count("tbf") == 2, "it was slowed twice"
            there.net.quicken("a")
            assert "tbf" not in queues()

    def test_a_closed_network_leaves_nothing_and_the_machine_is_as_before() -> None:
        def machine() -> list[str]:
            return [output(one) for one in (["ip", "-o", "addr"], ["ip", "route"])]

        def ours() -> list[str]:
            names = [line.split()[0] for line in output(["ip", "netns"]).splitlines()]
            return [name for name in names if name.startswith(network.PREFIX + network.run_id())]

        before = machine()
        with world("namespaces"):
            assert len(ours()) == 1 + len(HOSTS)
            assert machine() == before
        assert ours() == []
        assert machine() == before


def test_what_a_killed_run_has_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    kind = "Namespaces" if not NO_NAMESPACES else "Loopback"
    module = "network" if not NO_NAMESPACES else "loopback"
    left = tmp_path / "left"
    program = f"""
import os, subprocess, sys, time
from tests.proofs.chaos.network import MARK, run_id
from tests.proofs.chaos.{module} import {kind}
net = {kind}({HOSTS!r})
child = subprocess.Popen(
    [*net.within("a"), sys.executable, "-c", "import time; time.sleep(600)"],
    env={{**os.environ, MARK: run_id()}},
)
open({str(left)!r}, "w").write(f"{{child.pid}} {{run_id()}}")
time.sleep(600)
"""
    run = subprocess.Popen([sys.executable, "-c", program])
    try:
        pid, name = eventually(lambda: left.read_text().split() if left.exists() else [], "it runs")
        assert not [words for words in network.sweep() if pid in words], "it lives"
        assert network.marked(name), "its child has its mark"
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    words = network.sweep()
    assert f"process {pid}" in words
    if not NO_NAMESPACES:
        names = {f"namespace {network.PREFIX}{name}-{host}" for host in ("switch", *HOSTS)}
        assert names <= set(words)
    assert network.marked(name) == []
    assert not [again for again in network.sweep() if name in again or pid in again]


def test_why_there_are_no_namespaces_is_said_with_what_helps() -> None:
    if os.geteuid() != 0:
        assert "root" in NO_NAMESPACES or "install" in NO_NAMESPACES
    found = subprocess.run(
        [sys.executable, "-c", "from tests.proofs.chaos.network import missing; print(missing())"],
        env={**os.environ, "PATH": "/nowhere"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "apt-get install -y iproute2" in found.stdout
