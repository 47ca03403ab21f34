"""A real MinIO as a process on loopback: an S3 server that keeps what it acknowledged over a kill.

It checks credentials, has conditional puts, and ignores conditions of deletes. Its part is built
for x86-64; elsewhere `qemu-x86_64` runs it with HOLDFAST_EMULATE=1, slowly.
"""

from __future__ import annotations

import os
import shutil
import urllib.request
from collections.abc import Sequence
from typing import Final

from tests.servers.parts import architecture, parts_folder, unpacked
from tests.servers.s3 import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server

_NAME: Final = "minio-amd64.xz"
_EMULATOR: Final = "qemu-x86_64"


def minio_missing() -> str:
    """Which part is not there, or not for this kind of machine; "" if MinIO can be started."""
    if not (parts_folder() / _NAME).is_file():
        return f"MinIO is not beside the checkout: {_NAME} is not in HOLDFAST_PARTS"
    if architecture() != "amd64" and not _emulated():
        return f"MinIO's part {_NAME} is not built for {architecture()}"
    return ""


def _emulated() -> bool:
    """Only where it is asked for: emulated it is some thirty times slower."""
    return os.environ.get("HOLDFAST_EMULATE") == "1" and shutil.which(_EMULATOR) is not None


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
