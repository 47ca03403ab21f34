"""A job with requirements: its environment is made once for all its workers, and a failure to make
one is the job's cause. With a package that is made here, so without any network."""

from __future__ import annotations

import zipfile
from pathlib import Path

from typer.testing import CliRunner

from holdfast.cli.main import app
from tests.integration.clusters import PATIENT, Home

SAYS = """
import importlib.util, os, pathlib, sys, time
import holdfast.wire.worker_messages, tiny
assert importlib.util.find_spec("torch"), "what the agent has is there too"
print("tiny", tiny.WORD, "in", sys.prefix, flush=True)
marks = pathlib.Path(sys.argv[1])
(marks / os.environ["HOLDFAST_WORKER"]).touch()
while len(list(marks.iterdir())) < 2:
    time.sleep(0.02)
"""
JOB = """
name: first
command: python says.py MARKS
bundle: .
workers: {min: 2, max: 2}
lanes: 2
resources: {cpu: 0.1}
requirements: requirements.txt
"""
WRONG = """
name: wrong
command: python says.py
bundle: .
resources: {cpu: 0.1}
requirements: [--no-index, no-such-package==1.0]
"""


def wheel(folder: Path) -> None:
    """`tiny` 1.0, as pip installs it."""
    files = {
        "tiny.py": "WORD = 'installed'\n",
        "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        "tiny-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\n"
        "Root-Is-Purelib: true\nTag: py3-none-any\n",
        "tiny-1.0.dist-info/entry_points.txt": "[console_scripts]\ntiny-says = tiny:WORD.title\n",
    }
    files["tiny-1.0.dist-info/RECORD"] = "".join(f"{name},,\n" for name in files)
    with zipfile.ZipFile(folder / "tiny-1.0-py3-none-any.whl", "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)


def code_in(folder: Path) -> Path:
    code = folder / "code"
    (code / "wheels").mkdir(parents=True)
    wheel(code / "wheels")
    (code / "says.py").write_text(SAYS)
    lines = "# what it imports\n--no-index\n--find-links ./wheels\n\ntiny==1.0  # ours\n"
    (code / "requirements.txt").write_text(lines)
    (folder / "marks").mkdir()
    (code / "first.yaml").write_text(JOB.replace("MARKS", str(folder / "marks")))
    (code / "wrong.yaml").write_text(WRONG)
    return code


def test_an_environment_is_made_once_for_all_workers_and_a_failure_is_the_jobs_cause(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path / "cluster", PATIENT)
    code = code_in(tmp_path)
    try:
        home.up()
        text = (code / "first.yaml").read_text().replace("requirements.txt", "nowhere.txt")
        (code / "nowhere.yaml").write_text(text)
        folder = str(home.cluster.folder)
        words = ["submit", str(code / "nowhere.yaml"), "--cluster", folder]
        refused = CliRunner().invoke(app, words)
        assert "does not travel with the job" in str(refused.exception), "before it is submitted"
        home.command("submit", str(code / "first.yaml"))
        assert home.ended("first").status.phase.value == "succeeded", home.command("why", "first")
        (made,) = home.cluster.folder.glob("nodes/*/environments/*")
        said = home.command("logs", "first")
        assert said.count(f"tiny installed in {made}") == 2, said
        assert said.count("Successfully installed tiny-1.0") == 1, "once, and the log has it"
        script = (made / "bin" / "tiny-says").read_text()
        assert f"{made}/bin/python" in script and ".tmp-" not in script
        home.command("submit", str(code / "wrong.yaml"))
        wrong = home.ended("wrong")
        assert wrong.status.phase.value == "failed" and len(wrong.failures) == 1, "not tried again"
        cause = "the environment could not be made: pip install: ERROR: No matching distribution"
        assert cause in home.command("why", "wrong").splitlines()[-1]
        assert cause in home.command("jobs")
        assert [path.name for path in made.parent.iterdir()] == [made.name], "nothing is left over"
    finally:
        home.end()
