"""What mkdocs does not do by itself; `mkdocs.yml` names this as its hook.

Pages of the repository that lie outside of `docs` become pages of the site. Links are written so
that they work where the files are read in the repository; here they are turned to where the pages
are in the site. mkdocs then checks each, with its anchor, and `--strict` fails for one that leads
nowhere.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[1]
# Where a page is in the repository, and in the site.
OUTSIDE: Final = {
    "README.md": "index.md",
    "LICENSE": "project/license.md",
    "CHANGELOG.md": "project/changes.md",
    "CODE_OF_CONDUCT.md": "project/conduct.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "bench/README.md": "project/bench.md",
    "simulation/README.md": "project/simulation.md",
    "simulation/serving/README.md": "project/simulation-of-serving.md",
}
_INSIDE: Final = {site: repository for repository, site in OUTSIDE.items()}
_LINK: Final = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)\s#]+)")
# `skip=` and the others are for tests/docs; neither GitHub nor the site shows them.
_FENCE: Final = re.compile(r"^(`{3,}[\w-]+)[ ].*$", re.M)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for repository, site in OUTSIDE.items():
        text = (ROOT / repository).read_text()
        if not repository.endswith(".md"):
            text = f"# {repository.capitalize()}\n```text\n{text}```\n"
        files.append(File.generated(config, site, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    here = page.file.src_uri
    home = posixpath.dirname(_INSIDE.get(here, f"docs/{here}"))

    def turned(link: re.Match[str]) -> str:
        repository = posixpath.normpath(posixpath.join(home, link[1]))
        site = OUTSIDE.get(repository, repository.removeprefix("docs/"))
        return posixpath.relpath(site, posixpath.dirname(here))

    return _LINK.sub(turned, _FENCE.sub(r"\1", markdown))
