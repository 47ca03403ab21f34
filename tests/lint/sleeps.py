"""No test waits for time where it means a condition: `python -m tests.lint.sleeps [FOLDER…]`.

`tests.waiting.eventually` and `soon` wait for a condition. A `time.sleep` is refused unless the
pause itself is what is tested, or a loop of its own looks again after it; then the line, or the
comment above it, says so: `# pause: why`.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Final

from tests.lint.owners import ROOT, Finding

# Scripts as users write them.
_USERS: Final = ROOT / "tests" / "conformance" / "scripts"
_REASON: Final = re.compile(r"# pause: \S+")
_FIX: Final = "wait for the condition (tests.waiting), or say why it is a pause: # pause: …"


def findings(path: Path, text: str) -> list[Finding]:
    """The sleeps of this file that say no reason."""
    lines = text.splitlines()
    nodes = list(ast.walk(ast.parse(text)))
    names = _names(nodes)
    found = []
    for node in nodes:
        if isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in names:
            above = lines[node.lineno - 2].strip() if node.lineno > 1 else ""
            said = above if above.startswith("#") else ""
            if not _REASON.search(lines[node.lineno - 1]) and not _REASON.search(said):
                found.append(Finding(path, node.lineno, f"a sleep without a reason; {_FIX}"))
    return sorted(set(found))


def _names(nodes: list[ast.AST]) -> set[str]:
    """What `time.sleep` is called here."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {f"{one.asname or one.name}.sleep" for one in node.names if one.name == "time"}
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            names |= {one.asname or one.name for one in node.names if one.name == "sleep"}
    return names


def main(folders: list[str]) -> int:
    tops = [Path(folder) for folder in folders] or [ROOT / "tests"]
    files = sorted(path for top in tops for path in top.rglob("*.py") if _USERS not in path.parents)
    found = [one for path in files for one in findings(path, path.read_text())]
    for one in found:
        sys.stderr.write(f"{one}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
