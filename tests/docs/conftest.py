"""Holdfast as `pip install` leaves it: a wheel of this checkout, in a virtual environment."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

_SOURCES = ("holdfast", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for all processes of this test run."""
    base = tmp_path_factory.getbasetemp()
    # With xdist each process has a folder of its own in one.
    return base.parent if base.name.startswith("popen-") else base


@pytest.fixture(scope="session")
def tools(shared: Path) -> Path:
    """The folder with `holdfast` and `python`; made once, whoever is first."""
    folder = shared / "installed"
    with alone(shared / "installed.lock"):
        if not (folder / "ready").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _install(folder)
            (folder / "ready").touch()
    tools = folder / "venv" / "bin"
    where = _run(tools / "python", "-c", "import holdfast; print(holdfast.__file__)", cwd=folder)
    assert Path(where.strip()).is_relative_to(folder), "the wheel is read, not the checkout"
    return tools


@contextmanager
def alone(file: Path) -> Iterator[None]:
    """One process at a time."""
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install(folder: Path) -> None:
    source = folder / "source"
    source.mkdir(parents=True)
    for name in _SOURCES:  # a build leaves files beside what it builds
        found = ROOT / name
        if found.is_dir():
            shutil.copytree(found, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(found, source)
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    offline = ("--no-deps", "--no-index")
    wheels = folder / "wheels"
    _run(*pip, "wheel", *offline, "--no-build-isolation", "--wheel-dir", wheels, source)
    place = folder / "venv"
    venv.create(place)
    (wheel,) = wheels.glob("*.whl")
    _run(*pip, "--python", place / "bin" / "python", "install", *offline, wheel)
    shutil.rmtree(source)
    # What it depends on is that of the tests. Lines of a .pth there are not read, so that the
    # checkout, which is installed there to be edited, is not found.
    site = next((place / "lib").glob("python*/site-packages"))
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "dependencies.pth").write_text("".join(f"{path}\n" for path in sorted(paths)))


def _run(*words: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
