"""A version is tried in a process of its own. The prefork server is forked before any thread: so by
a process that has none."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from holdfast.serve.priority import LOADING_NICE, NICE_MAX, TRIAL_NICE, may_return
from tests.waiting import eventually

SCRIPT = """
import sys, time
from pathlib import Path
from holdfast.models.records import ModelKind, Signature, TensorSpec, Version
from holdfast.serve.replica import trial
from holdfast.wire.errors import BadModel, Unavailable

trial.TRIAL_S, trial.TRIAL_PATIENCE_S = float(sys.argv[2]), float(sys.argv[3])
prefork = trial.PreforkServer.fork()
signature = Signature((TensorSpec("x", "FP32", (-1, 1)),), (TensorSpec("y", "FP32", (-1, 1)),))
for number, name in enumerate(sys.argv[4:], 1):
    record = Version("m", number, ModelKind.FUNCTION, signature, {}, "sha256:1", 0.0,
                     bundle="x", entry=f"{name}:predict")
    try:
        manner = prefork.trial(record, Path(sys.argv[1]), 4)
        print(name, "loads,", manner.pace.value)
    except BadModel as error:
        print(name, "fails:", error.what, "|", error.why)
    except Unavailable:
        print(name, "is not tried: the prefork server is gone")
pids = prefork.pids
prefork.close()
print("alive" if any(Path(f"/proc/{pid}").exists() for pid in pids) else "gone")
"""
CODE = {
    "good": "def predict(inputs):\n    return inputs\n",
    "raises": "raise RuntimeError('no table')\n",
    "exits": "import os\nos._exit(5)\n",
    "crashes": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n",
    "hangs": "import time\ntime.sleep(3600)\n",
    "eats": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n",
    "looks": "import os\nraise RuntimeError(f'stands at {os.getpriority(os.PRIO_PROCESS, 0)}')\n",
    "waits": """
        import os, time
        from holdfast.serve.priority import may_return

        while may_return() and os.getpriority(os.PRIO_PROCESS, 0) != os.getpriority(
            os.PRIO_PROCESS, int(os.environ["BESIDE"])
        ):
            time.sleep(0.01)

        def predict(inputs):
            return inputs
        """,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    code = tmp_path / "code"
    code.mkdir()
    for name, text in CODE.items():
        (code / f"{name}.py").write_text(textwrap.dedent(text))
    return tmp_path


def tried(folder: Path, *names: str, within_s: float = 100.0, patience_s: float = 0.5) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), str(within_s), str(patience_s), *names],
        env={**os.environ, "BESIDE": str(os.getpid())},
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
    assert said[4] == "good loads, long"
    assert "status 5" in said[5]
    assert said[6:] == ["good loads, long", "gone"]


def test_a_version_that_never_finishes_loading_is_stopped(folder: Path) -> None:
    said = tried(folder, "hangs", within_s=2.0)
    assert "does not finish loading" in said[0]
    assert said[1:] == ["gone"]


def test_a_trial_has_a_lower_priority(folder: Path) -> None:
    by = TRIAL_NICE if may_return() else LOADING_NICE
    stands = min(os.getpriority(os.PRIO_PROCESS, 0) + by, NICE_MAX)
    assert f"stands at {stands}" in tried(folder, "looks", patience_s=100.0)[0]


def test_a_trial_that_takes_longer_than_its_patience_goes_on_as_all_others(folder: Path) -> None:
    said = tried(folder, "waits", "waits", patience_s=0.2)
    assert said == ["waits loads, long", "waits loads, long", "gone"]


KILLED = """
import sys
from pathlib import Path
from holdfast.models.records import ModelKind, Signature, Version
from holdfast.serve.replica.trial import PreforkServer

prefork = PreforkServer.fork()
print(*prefork.pids, flush=True)
record = Version("m", 1, ModelKind.FUNCTION, Signature((), ()), {}, "sha256:1", 0.0,
                 bundle="x", entry="told:predict")
prefork.trial(record, Path(sys.argv[1]), 4)
"""


def test_a_whole_prefork_server_ends_with_its_process_also_in_the_middle_of_a_trial(
    folder: Path,
) -> None:
    told = folder / "pid"
    code = f"import os, time\nopen({str(told)!r}, 'w').write(f'{{os.getpid()}}.')\ntime.sleep(3600)"
    (folder / "code" / "told.py").write_text(code)
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(folder)], stdout=subprocess.PIPE, text=True
    ) as replica:
        assert replica.stdout is not None
        pids = [int(pid) for pid in replica.stdout.readline().split()]
        eventually(lambda: told.exists() and told.read_text().endswith("."), "it is being tried")
        replica.kill()
    pids.append(int(told.read_text()[:-1]))
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "all are gone")


SMALL = """
import sys
from pathlib import Path
from holdfast.models.records import ModelKind, Signature, Version
from holdfast.serve.replica.trial import PreforkServer
from holdfast.storage import open_store, put_part

folder = Path(sys.argv[1])
store = f"file:{folder / 'store'}"
prefork = PreforkServer.fork(lambda: open_store(store))
part = put_part(open_store(store), b"weights")
record = Version("m", 1, ModelKind.TORCH, Signature((), ()), {"f": part}, "sha256:1", 0.0)
prefork.warm(record)
print(prefork.fetch(record, folder / "cache"))
for pid in prefork.pids:
    print("torch" if "libtorch" in Path(f"/proc/{pid}/maps").read_text() else "small")
prefork.close()
"""


def test_a_prefork_server_is_warm_when_it_is_told_and_what_forks_for_fetching_stays_small(
    tmp_path: Path,
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SMALL, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert ran.stdout.split() == ["True", "small", "torch"]


FETCHING = """
import os, sys
from pathlib import Path
from holdfast.models import loading
from holdfast.models.records import ModelKind, Signature, Version
from holdfast.serve.replica.trial import PreforkServer
from holdfast.storage import open_store, put_part

folder = Path(sys.argv[1])
store = f"file:{folder / 'store'}"
prefork = PreforkServer.fork(lambda: open_store(store))
blobs, cache = open_store(store), folder / "cache"
part = put_part(blobs, b"weights")
one = Version("m", 1, ModelKind.ONNX, Signature((), ()), {"f": part}, "sha256:1", 0.0)
print("fetched" if prefork.fetch(one, cache) else "failed", loading.present(one, cache))
blobs.delete(part.key)
(loading.place(one, cache) / "f").write_bytes(b"damaged")
print("fetched" if prefork.fetch(one, cache) else "failed", loading.present(one, cache))
prefork.close()
print("fetched" if PreforkServer.fork().fetch(one, cache) else "failed")
"""


def test_files_are_fetched_apart_and_what_cannot_be_is_said(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FETCHING, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert ran.stdout.splitlines() == ["fetched True", "failed True", "failed"]
