"""The place where the suite runs: an environment of its own, so that the project's stays light."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from tests.servers.zookeeper import class_path

# What kazoo's tests import. Without gevent and eventlet: their tests are not part of this proof.
PACKAGES = (
    "kazoo==2.11.0",
    "objgraph>=3.6",
    "pure-sasl==0.6.2",
    "pyOpenSSL<26.2",
    "pyjks>=20.0",
    "pytest>=8.0",
    "pytest-timeout>=2.3",
)
ROOT = Path(__file__).resolve().parents[3]
SHIM = Path(__file__).with_name("java.py")


class WorkshopMissing(Exception):
    """The environment could not be made; the message says why and what to do."""


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "holdfast" / "kazoo-suite"


def workshop_python() -> Path:
    """The interpreter of the suite's environment, which is made when it is not there yet."""
    wanted = "\n".join((*PACKAGES, sys.version))
    folder = cache_folder() / hashlib.sha256(wanted.encode()).hexdigest()[:16]
    python = folder / "bin" / "python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / "complete").exists():
            return python
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        done = subprocess.run([*command, *PACKAGES], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise WorkshopMissing(
                f"pip could not install what kazoo's tests need: {done.stderr.strip()[-800:]}\n"
                f"fix: check the network or the package index, then run it again"
            )
        (folder / "complete").touch()
    return python


def suite_folder(python: Path) -> Path:
    """Where the installed kazoo keeps its tests."""
    code = "import kazoo.tests; print(kazoo.tests.__path__[0])"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


def write_java(folder: Path, python: Path) -> None:
    """A program named `java` that starts our server."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "java"
    program.write_text(f'#!/bin/sh\nexec "{python}" "{SHIM}" "{sys.executable}" "{ROOT}" "$@"\n')
    program.chmod(0o755)


def environment(folder: Path, python: Path, port: int, real: bool) -> dict[str, str]:
    """What the suite reads from its environment."""
    settings = dict(os.environ)
    settings.pop("PYTHONPATH", None)
    # `CI` makes the suite compare the server's version with the one that it was promised.
    settings.update(
        CI="1",
        ZOOKEEPER_VERSION="3.8.0",
        ZOOKEEPER_CLUSTER_SIZE="1",
        ZOOKEEPER_CLASSPATH=class_path() or "none",
        ZOOKEEPER_PORT_OFFSET=str(port),
        TMPDIR=str(folder),
    )
    if not real:
        settings["PATH"] = f"{folder / 'bin'}{os.pathsep}{settings['PATH']}"
        write_java(folder / "bin", python)
    return settings
