"""Credentials of jobs that no coordinator knows: for tests that play it."""

from __future__ import annotations

from pathlib import Path

from holdfast.system.job_certificates import equip
from holdfast.system.job_credentials import Credentials

SECRET = "5e" * 32
ANOTHER = "a7" * 32


def credentials(
    job: str = "job", *, secret: str = SECRET, folder: Path | None = None
) -> Credentials:
    """With a folder: certificates too."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        equip(folder, secret)
    return Credentials(job, bytes.fromhex(secret), folder)
