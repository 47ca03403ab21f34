"""The site that `make docs` builds from the pages and the docstrings."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import client, train
from tests.docs.pages import ROOT

REFERENCE = ROOT / "docs" / "reference"


def test_every_public_name_of_the_client_and_of_train_is_in_the_reference() -> None:
    text = "\n".join(page.read_text() for page in sorted(REFERENCE.glob("*.md")))
    shown = set(re.findall(r"^::: (\S+)$", text, re.M))
    errors = {"holdfast.client.JobFailed"}  # shown with the tree of errors
    former = {"holdfast.train.Turn"}  # `LaneStep` under its old name, for one release
    public = {f"holdfast.client.{name}" for name in client.__all__}
    public |= {f"holdfast.train.{name}" for name in train.__all__}
    assert public - errors - former <= shown
    assert "holdfast.wire.errors" in shown


@pytest.mark.engines
def test_the_site_builds_without_a_link_that_leads_nowhere_and_shows_the_api() -> None:
    # What is installed here is what `make setup` would install; it is not asked again.
    make = ["make", "--old-file=setup", "docs", f"VENV={sys.prefix}"]
    done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    site = ROOT / "build" / "site"
    for page, name in (
        ("client", "holdfast.client.Client.submit"),
        ("async-client", "holdfast.client.AsyncClient.submit"),
        ("train", "holdfast.train.Run.batches"),
        ("errors", "holdfast.wire.errors.RetryError"),
    ):
        assert f'id="{name}"' in (site / "reference" / page / "index.html").read_text()
    assert _fetched(site) == []


def _fetched(site: Path) -> list[str]:
    """What readers would fetch from elsewhere: nothing."""
    elsewhere = re.compile(r"""<(?:script|link|img)[^>]*?(?:src|href)=["']?(https?:[^"' >]+)""")
    return [
        f"{page.relative_to(site)}: {found}"
        for page in sorted(site.rglob("*.html"))
        for found in elsewhere.findall(page.read_text())
    ]
