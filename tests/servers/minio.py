"""A real MinIO as a process on loopback: an S3 server that keeps what it acknowledged over a kill.

It checks credentials, has conditional puts, and ignores conditions of deletes. Its part is built
for x86-64; elsewhere `qemu-x86_64` runs it, where that is installed.
"""

from __future__ import annotations

import os
import shutil
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.servers.parts import architecture, parts_folder, unpacked
from tests.servers.s3 import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server

_NAME: Final = "minio-amd64.xz"
_EMULATOR: Final = "qemu-x86_64"


def minio_elsewhere() -> str:
    """Why no MinIO can run on this kind of machine; "" if one can. No test can help that."""
    if architecture() != "amd64" and shutil.which(_EMULATOR) is None:
        return f"MinIO's part {_NAME} is not built for {architecture()} (nor is {_EMULATOR} here)"
    return ""


def minio_missing() -> str:
    """Why there is no MinIO, where one could run; "" if there is."""
    if (parts_folder() / _NAME).is_file():
        return ""
    return f"MinIO's part is missing: put {_NAME} into $HOLDFAST_PARTS, which is {parts_folder()}"


class MinioServer(S3Server):
    """One MinIO with one drive, a folder of this machine."""

    def command(self) -> Sequence[str]:
        drive = self.folder / "drive"
        # A bucket of a single drive is a folder of it.
        (drive / BUCKET).mkdir(parents=True, exist_ok=True)
        emulated = [] if architecture() == "amd64" else [_EMULATOR]
        program = str(unpacked(parts_folder() / _NAME))
        return [*emulated, program, "server", "--quiet", "--address", self.hosts, str(drive)]

    def environment(self) -> dict[str, str]:
        own = {"MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY}
        still = {"MINIO_BROWSER": "off", "MINIO_UPDATE": "off", "HOME": str(self.folder)}
        return {**os.environ, **own, **still}

    def ready(self) -> bool:
        try:
            ask = f"http://{self.hosts}/minio/health/ready"
            with urllib.request.urlopen(ask, timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def objects_of(folder: Path) -> list[str]:
    """The names below a server's bucket, as they lie on its drive; for what tests print."""
    bucket = folder / "drive" / BUCKET
    return sorted(str(path.relative_to(bucket)) for path in bucket.rglob("xl.meta"))
