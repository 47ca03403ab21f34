"""Which commands a zygote can run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from holdfast.agent.launching import Program, program_of, wants_torch

PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("import os\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "main.py").write_text("if True:\n    from torch import nn\n")
    return tmp_path


def of(folder: Path, *command: str, **wanted: str) -> Program | None:
    return program_of(command, wanted, PATH, folder)


@pytest.mark.parametrize("python", ["python", "python3", sys.executable])
def test_a_script_run_by_our_own_interpreter_is_a_program(folder: Path, python: str) -> None:
    found = of(folder, python, "train.py", "--lr", "-m")
    assert found == Program(str(folder / "train.py"), "", ("train.py", "--lr", "-m"))
    assert of(folder, python, "-u", "train.py", "--lr", "-m") == found


def test_a_module_is_a_program(folder: Path) -> None:
    assert of(folder, "python", "-m", "package.main", "x") == Program(
        "", "package.main", ("-m", "x")
    )


@pytest.mark.parametrize(
    "command",
    [
        ("python",),
        ("python", "-m"),
        ("python", "-m", "-x"),
        ("python", "-c", "print(1)"),
        ("python", "-O", "train.py"),
        ("python", "-"),
        ("python", "no_such.py"),
        ("python", "package"),
        ("bash", "train.py"),
        ("/usr/bin/env", "python", "train.py"),
        ("./python", "train.py"),
        ("no-such-python", "train.py"),
    ],
    ids=" ".join,
)
def test_what_is_unusual_is_executed(folder: Path, command: tuple[str, ...]) -> None:
    assert of(folder, *command) is None


def test_the_interpreter_of_another_environment_is_not_ours(folder: Path) -> None:
    other = folder / "bin" / "python"
    other.parent.mkdir()
    other.symlink_to(Path(sys.executable).resolve())
    assert program_of([str(other), "train.py"], {}, PATH, folder) is None
    path = f"{other.parent}{os.pathsep}{PATH}"
    assert program_of(["python", "train.py"], {}, path, folder) is None


@pytest.mark.parametrize(
    ("name", "forked"),
    [
        ("PYTHONPATH", True),
        ("OMP_NUM_THREADS", True),
        ("CUDA_VISIBLE_DEVICES", True),
        ("MINE", True),
        ("PYTHONHASHSEED", False),
        ("PYTHONPATHS", False),
        ("OMP_NUM_THREADS_MORE", False),
        ("LD_PRELOAD", False),
        ("MKL_NUM_THREADS", False),
        ("PYTORCH_CUDA_ALLOC_CONF", False),
        ("LC_ALL", False),
    ],
)
def test_a_variable_that_is_read_at_the_start_is_left_to_execution(
    folder: Path, name: str, forked: bool
) -> None:
    assert (of(folder, "python", "train.py", **{name: "x"}) is not None) == forked


def test_a_job_may_say_that_it_wants_to_be_executed_or_to_wait(folder: Path) -> None:
    assert of(folder, "python", "train.py", HOLDFAST_WARM="0") is None
    plain = of(folder, "python", "train.py")
    assert plain is not None
    assert not wants_torch(plain, {}, folder)
    assert wants_torch(plain, {"HOLDFAST_WARM": "1"}, folder)


@pytest.mark.parametrize(
    ("text", "wants"),
    [
        ("import torch\n", True),
        ("import os\nfrom torch.nn import Linear\n", True),
        ("    import torch.nn as nn\n", True),
        ("# torch is not imported\nimport torchless\n", False),
        ("print('import torch')\n", False),
        ("", False),
    ],
)
def test_a_script_wants_torch_when_it_imports_it(folder: Path, text: str, wants: bool) -> None:
    (folder / "train.py").write_text(text)
    script = of(folder, "python", "train.py")
    assert script is not None
    assert wants_torch(script, {}, folder) == wants


def test_a_module_wants_torch_when_its_file_imports_it(folder: Path) -> None:
    found = of(folder, "python", "-m", "package.main")
    assert found is not None
    assert wants_torch(found, {}, folder)
    gone = of(folder, "python", "-m", "package.other")
    assert gone is not None
    assert not wants_torch(gone, {}, folder)
