"""What the README tells people to do works."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.running import ROOT, environment, holdfast

README = (ROOT / "README.md").read_text()
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]


def test_the_python_snippet_runs(tmp_path: Path) -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    # The server lingers for the next client; the test asks for a shorter stay.
    snippet = snippet.replace("embedded:./coord", "embedded:./coord?linger_s=1")
    done = subprocess.run(
        [sys.executable, "-c", snippet],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=tmp_path,
        env=environment(),
    )
    assert done.stdout == "I lead, term 1\n", done.stderr


def test_every_command_in_the_readme_exists() -> None:
    commands = re.findall(r"^holdfast ((?:[a-z]+ ?)+)", README, re.MULTILINE)
    assert len(commands) >= 4
    for command in commands:
        assert holdfast(*command.split(), "--help").returncode == 0


def test_every_make_target_in_the_documents_exists() -> None:
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in DOCUMENTS:
        named = re.findall(r"(?:^|`)make ([a-z]+(?:-[a-z]+)*)", path.read_text(), re.MULTILINE)
        assert set(named) <= known, path.name


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_to_a_file(path: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text())
    missing = [link for link in links if "://" not in link and not (path.parent / link).exists()]
    assert not missing
