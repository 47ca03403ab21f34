"""What each package offers to the others, listed: a name that comes or goes is seen in review.

HOLDFAST_GOLDEN=write python -m pytest tests/unit/test_public_names.py
"""

from __future__ import annotations

import ast
import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "public_names.txt"


def test_the_public_names_of_every_package_are_those_that_are_listed() -> None:
    found = "".join(
        f"{package}: {' '.join(names) or '-'}\n" for package, names in sorted(_packages().items())
    )
    if os.environ.get("HOLDFAST_GOLDEN") == "write":
        GOLDEN.write_text(found)
    assert found == GOLDEN.read_text(), "HOLDFAST_GOLDEN=write writes what is there now"


def _packages() -> dict[str, list[str]]:
    """What `__all__` of each package says; nothing: its modules are imported by their names."""
    found = {}
    for path in (ROOT / "holdfast").rglob("__init__.py"):
        package = ".".join(path.parent.relative_to(ROOT).parts)
        found[package] = sorted(_listed(ast.parse(path.read_text())))
    return found


def _listed(module: ast.Module) -> list[str]:
    for statement in module.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
            if statement.value is not None and "__all__" in [
                target.id for target in targets if isinstance(target, ast.Name)
            ]:
                return [str(name) for name in ast.literal_eval(statement.value)]
    return []
