"""A job that fills the disk, and one that waits for it: through the real command, coordinator,
agent and process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from holdfast.launch import local
from tests.integration.clusters import AGENT_SIZE, PATIENT, Home
from tests.waiting import eventually

FILLS = """
import pathlib, sys, time
go = pathlib.Path(sys.argv[1])
while not go.exists():
    time.sleep(0.02)
with open("beside-the-code", "wb") as one, open("/tmp/in-tmp", "wb") as other:
    for _ in range(15):
        one.write(bytes(10**6)), other.write(bytes(10**6))
while True:
    time.sleep(1)
"""
JOB = """
name: NAME
command: python fills.py GO
bundle: .
resources: {cpu: 0.1, disk: 20MB}
restart: {failures_max: 0}
"""


def test_a_job_that_writes_more_than_its_disk_is_ended_and_says_so_and_another_waited_for_it(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path / "cluster", PATIENT)
    code, go = tmp_path / "code", tmp_path / "marks" / "go"
    code.mkdir()
    go.parent.mkdir()
    (code / "fills.py").write_text(FILLS)
    for name in ("first", "second"):
        (code / f"{name}.yaml").write_text(JOB.replace("NAME", name).replace("GO", str(go)))
    try:
        local.up(home.cluster, size=replace(AGENT_SIZE, disk_bytes=30 * 10**6), supervised=False)
        with home.control() as control:
            home.command("submit", str(code / "first.yaml"))
            eventually(lambda: control.job("first").placements, "it has a worker")
            home.command("submit", str(code / "second.yaml"))
            waits = "waits for 0.1 cpu and 20 MB disk; job `first` holds it"
            eventually(lambda: waits in control.job("second").status.reason, waits)
            assert waits in " ".join(home.command("why", "second").split())
            go.touch()
            for name in ("first", "second"):  # who waited gets what was freed, and fails likewise
                assert home.ended(name).status.phase.value == "failed"
        cause = "MB of disk, 20 MB allowed: raise resources.disk"
        assert cause in home.command("why", "first").splitlines()[-1]
        assert cause in home.command("jobs") and cause in home.command("jobs", "second")
        assert not list(home.cluster.folder.rglob("beside-the-code")), "it goes with the worker"
    finally:
        home.end()
