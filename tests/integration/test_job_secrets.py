"""A secret goes from the person who sets it to the workers of the jobs that name it, and nowhere
else: through the real command, coordinator, agent and process."""

from __future__ import annotations

import hashlib
from pathlib import Path

from typer.testing import CliRunner

from holdfast.cli.main import app
from holdfast.control.jobfile import reading as jobfile
from tests.integration.clusters import PATIENT, Home
from tests.waiting import eventually

VALUE = "tr0ub4dor-and-3"
JOB = """
name: keyed
command: [sh, -c, 'printf %s "$TOKEN" | sha256sum > MARK; echo "$STAGE" >> MARK']
resources: {cpu: 0.1}
env: {STAGE: test}
secrets: {TOKEN: hub-token}
"""


def test_a_job_waits_for_its_secret_gets_it_and_nobody_else_sees_it(tmp_path: Path) -> None:
    home = Home(tmp_path / "cluster", PATIENT)
    mark = tmp_path / "mark"
    try:
        home.up()
        with home.control() as control:
            control.submit(jobfile.parse(JOB.replace("MARK", str(mark)), "job.yaml"))
            wait = "waits for secret hub-token: `holdfast secret set hub-token`"
            eventually(lambda: control.job("keyed").status.reason == wait, wait)
        refused = CliRunner().invoke(app, ["secret", "set", "hub-token", VALUE])
        assert "not given on a command line" in str(refused.exception) and not mark.exists()
        shown = home.command("secret", "set", "hub-token", "-", given=f"{VALUE}\n")
        assert home.ended("keyed").status.phase.value == "succeeded"
        digest, _, stage = mark.read_text().split()
        assert (digest, stage) == (hashlib.sha256(VALUE.encode()).hexdigest(), "test")
        shown += home.command("secrets") + home.command("secrets", "--json")
        shown += home.command("jobs", "keyed") + home.command("jobs", "keyed", "--json")
        shown += home.command("why", "keyed")
        assert "hub-token" in shown and VALUE not in shown
        held = [
            path.relative_to(home.cluster.folder).parts
            for path in home.cluster.folder.rglob("*")
            if path.is_file() and VALUE.encode() in path.read_bytes()
        ]
        # The plane's own files; and what the process was started with, in its worker's folder.
        others = [parts for parts in held if parts[0] != "coordination"]
        assert {parts[-1] for parts in others} <= {"launch.json"}, held
        home.command("secret", "remove", "hub-token")
        assert "hub-token" not in home.command("secrets")
    finally:
        home.end()
