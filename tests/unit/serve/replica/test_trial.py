"""A version is tried in a process of its own. The nest is forked before any thread: so by a process
that has none."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SCRIPT = """
import sys, time
from pathlib import Path
from holdfast.models.records import Kind, Signature, TensorSpec, Version
from holdfast.serve.replica import trial
from holdfast.wire.errors import BadModel, Unavailable

trial.TRIAL_S = float(sys.argv[2])
nest = trial.Nest.fork()
signature = Signature((TensorSpec("x", "FP32", (-1, 1)),), (TensorSpec("y", "FP32", (-1, 1)),))
for number, name in enumerate(sys.argv[3:], 1):
    record = Version("m", number, Kind.FUNCTION, signature, {}, "sha256:1", 0.0,
                     bundle="x", entry=f"{name}:predict")
    try:
        nest.trial(record, Path(sys.argv[1]), 4)
        print(name, "loads")
    except BadModel as error:
        print(name, "fails:", error.what, "|", error.why)
    except Unavailable:
        print(name, "is not tried: the nest is gone")
pid = nest.pid
nest.close()
print("alive" if Path(f"/proc/{pid}").exists() else "gone")
"""
CODE = {
    "good": "def predict(inputs):\n    return inputs\n",
    "raises": "raise RuntimeError('no table')\n",
    "exits": "import os\nos._exit(5)\n",
    "crashes": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n",
    "hangs": "import time\ntime.sleep(3600)\n",
    "eats": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    code = tmp_path / "code"
    code.mkdir()
    for name, text in CODE.items():
        (code / f"{name}.py").write_text(textwrap.dedent(text))
    return tmp_path


def tried(folder: Path, *names: str, within_s: float = 100.0) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), str(within_s), *names],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    return ran.stdout.splitlines()


def test_whatever_a_version_does_happens_to_the_trial_alone(folder: Path) -> None:
    said = tried(folder, "raises", "exits", "crashes", "eats", "good", "exits", "good")
    assert "no table" in said[0]
    assert said[1] == "exits fails: loading m@2 ends its process | it ended with status 5"
    assert "SIGSEGV" in said[2]
    assert "SIGKILL" in said[3]
    assert said[4] == "good loads"
    assert "status 5" in said[5]
    assert said[6:] == ["good loads", "gone"]


def test_a_version_that_never_finishes_loading_is_stopped(folder: Path) -> None:
    said = tried(folder, "hangs", within_s=2.0)
    assert "does not finish loading" in said[0]
    assert said[1:] == ["gone"]
