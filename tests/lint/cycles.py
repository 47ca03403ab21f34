"""No import cycle among the modules of holdfast: `python -m tests.lint.cycles`.

Every import counts: those at the top, those within functions, and those for type checkers alone. A
cycle of the last two kinds runs, but its modules cannot be read one after the other. A module that
imports from its own package's `__init__` counts too; that a package is imported with its module
does not.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = "holdfast"

# Cycles that are left: none, and none may come.
LEFT: Final[frozenset[tuple[str, ...]]] = frozenset()


def modules_below(root: Path) -> dict[str, Path]:
    """The modules of the package, by their dotted names."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(modules: Mapping[str, str]) -> dict[str, set[str]]:
    """Which of these modules each one imports, from their texts."""
    graph = {}
    for name, text in modules.items():
        found: set[str] = set()
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Import(names=names):
                    found |= {one.name for one in names}
                case ast.ImportFrom(module=str(source), names=names, level=0):
                    within = {f"{source}.{one.name}" for one in names}
                    submodules = within & modules.keys()
                    found |= submodules
                    if len(submodules) < len(within):
                        found.add(source)
        graph[name] = (found & modules.keys()) - {name}
    return graph


def cycles(graph: Mapping[str, set[str]]) -> list[tuple[str, ...]]:
    """The groups of modules that import each other, directly or not: strongly connected
    components of more than one."""
    order: list[str] = []
    seen: set[str] = set()
    for start in graph:
        _walk(start, graph, seen, order)
    back: dict[str, set[str]] = {name: set() for name in graph}
    for name, targets in graph.items():
        for target in targets:
            back[target].add(name)
    found, seen = [], set()
    for start in reversed(order):
        group: list[str] = []
        _walk(start, back, seen, group)
        if len(group) > 1:
            found.append(tuple(sorted(group)))
    return sorted(found)


def _walk(start: str, graph: Mapping[str, set[str]], seen: set[str], order: list[str]) -> None:
    """All that is reached from `start` and not seen yet, each behind what it leads to."""
    if start in seen:
        return
    seen.add(start)
    stack = [(start, iter(sorted(graph[start])))]
    while stack:
        name, rest = stack[-1]
        following = next((each for each in rest if each not in seen), None)
        if following is None:
            order.append(name)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(sorted(graph[following]))))


def main() -> int:
    texts = {name: path.read_text() for name, path in modules_below(ROOT).items()}
    found = set(cycles(imports_of(texts)))
    for one in sorted(found - LEFT):
        sys.stderr.write(f"these import each other: {', '.join(one)}\n")
    for one in sorted(LEFT - found):
        sys.stderr.write(f"no cycle any more, remove it from LEFT: {', '.join(one)}\n")
    return 1 if found != LEFT else 0


if __name__ == "__main__":
    sys.exit(main())
