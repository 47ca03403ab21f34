"""Members on two machines: network namespaces with a cable between them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import require_service

ROOT = Path(__file__).parents[2]
HOSTS = ("10.77.0.1", "10.77.0.2")


def _ip(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=True)


@pytest.fixture
def machines() -> Iterator[tuple[str, str]]:
    """Two network namespaces that reach each other at `HOSTS`."""
    names = (f"hf{os.getpid()}a", f"hf{os.getpid()}b")
    made = []
    try:
        try:
            for name in names:
                _ip("netns", "add", name)
                made.append(name)
            ends = [("name", f"{name}0", "netns", name) for name in names]
            _ip("link", "add", *ends[0], "type", "veth", "peer", *ends[1])
            for name, host in zip(names, HOSTS, strict=True):
                _ip("-n", name, "addr", "add", f"{host}/24", "dev", f"{name}0")
                for device in ("lo", f"{name}0"):
                    _ip("-n", name, "link", "set", device, "up")
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            require_service(f"no network namespaces here: {error}")
        yield names
    finally:
        for name in made:
            _ip("netns", "del", name)


def test_members_speak_tls_between_machines_and_not_within_one(
    machines: tuple[str, str], tmp_path: Path
) -> None:
    places = [(machines[0], HOSTS[0]), (machines[0], HOSTS[0]), (machines[1], HOSTS[1])]
    listed = ",".join(host for _, host in places)
    members = [
        subprocess.Popen(
            [
                *("ip", "netns", "exec", machine, sys.executable, "-m"),
                *("tests.faults.mesh_process", str(tmp_path), str(number), listed),
            ],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for number, (machine, _) in enumerate(places)
    ]
    try:
        said = [json.loads(member.communicate(timeout=120)[0]) for member in members]
    finally:
        for member in members:
            member.kill()
            member.wait()
    assert said == [
        {"1": "socket", "2": "TlsSocket"},
        {"0": "socket", "2": "TlsSocket"},
        {"0": "TlsSocket", "1": "TlsSocket"},
    ]
