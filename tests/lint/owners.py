"""No thread, task or future without an owner: `python -m tests.lint.owners [FOLDER…]`.

`holdfast.system.tasks` starts threads and tasks; elsewhere these are refused:

- `threading.Thread`, `threading.Timer`, `_thread.start_new_thread`, in whatever way they are named;
- `create_task` and `ensure_future`, of asyncio, of a loop or of a group;
- a future that nobody keeps: `submit` of an executor, `run_coroutine_threadsafe`, `to_thread`,
  `run_in_executor` and `gather` as a statement, or into `_`;
- `start_thread` and `start_task` as a statement: nobody could wait for it. A thread that nobody
  waits for says why: `lasts=`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
OWNER: Final = ROOT / "holdfast" / "system" / "tasks.py"

_RAW: Final = {"threading": ("Thread", "Timer"), "_thread": ("start_new_thread",)}
_TASKS: Final = ("create_task", "ensure_future")
_FUTURES: Final = ("run_coroutine_threadsafe", "run_in_executor", "to_thread")
_OWNED: Final = ("start_thread", "start_task")
_POOLS: Final = ("ThreadPoolExecutor", "ProcessPoolExecutor", "Executor")
_FIX: Final = "use start_thread, start_task or Tasks of holdfast.system.tasks"


class Finding(NamedTuple):
    path: Path
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


def findings(path: Path, text: str) -> list[Finding]:
    """What this file starts without an owner."""
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    raw, pools = _raw_names(nodes), _pools(nodes)
    found: list[Finding] = []
    for node in nodes:
        what = _started(node, raw) or _dropped(node, pools)
        if what:
            found.append(Finding(path, getattr(node, "lineno", 0), what))
    return sorted(set(found))


def _raw_names(nodes: list[ast.AST]) -> set[str]:
    """What the modules that start threads, and what of them, are called here."""
    names = {f"{module}.{name}" for module, each in _RAW.items() for name in each}
    for node in nodes:
        if isinstance(node, ast.Import):
            for one in node.names:
                names |= {f"{one.asname or one.name}.{name}" for name in _RAW.get(one.name, ())}
        elif isinstance(node, ast.ImportFrom):
            given = _RAW.get(node.module or "", ())
            names |= {one.asname or one.name for one in node.names if one.name in given}
    return names


def _started(node: ast.AST, raw: set[str]) -> str:
    match node:
        case ast.Attribute(value=ast.Name(id=module), attr=name):
            name = f"{module}.{name}"
        case ast.Name(id=name):
            pass
        case _:
            name = ""
    if name in raw:
        return f"a thread without an owner: {name}; {_FIX}"
    if isinstance(node, ast.Call) and _last(node.func) in _TASKS:
        return f"a task without an owner: {_last(node.func)}; {_FIX}"
    return ""


def _dropped(node: ast.AST, pools: set[str]) -> str:
    for call in _unkept(node):
        name = _last(call.func)
        if name in _FUTURES or (name == "gather" and ast.unparse(call.func) == "asyncio.gather"):
            return f"nobody keeps the future of {name}: await it, or `owned(future, died)`"
        if name == "submit" and isinstance(call.func, ast.Attribute):
            pool = ast.unparse(call.func.value)
            if pool in pools:
                return f"nobody keeps the future of {pool}.submit: `owned(future, died)`"
        if name in _OWNED and not any(word.arg == "lasts" for word in call.keywords):
            return f"nobody can wait for what {name} starts: keep it, or say `lasts=`"
    return ""


def _unkept(node: ast.AST) -> Iterator[ast.Call]:
    """Calls whose value goes nowhere."""
    match node:
        case ast.Expr(value=ast.Call() as call):
            yield call
        case ast.Assign(targets=[ast.Name(id="_")], value=ast.Call() as call):
            yield call


def _pools(nodes: list[ast.AST]) -> set[str]:
    """The names under which this file has executors."""
    found: set[str] = set()
    for node in nodes:
        match node:
            case ast.Assign(targets=targets, value=ast.Call(func=made)) if _last(made) in _POOLS:
                found |= {ast.unparse(target) for target in targets}
            case ast.AnnAssign(target=target, annotation=kind) if _names_pool(kind):
                found.add(ast.unparse(target))
            case ast.withitem(context_expr=ast.Call(func=made), optional_vars=target):
                if target is not None and _last(made) in _POOLS:
                    found.add(ast.unparse(target))
            case ast.arg(arg=name, annotation=kind) if kind is not None and _names_pool(kind):
                found.add(name)
    return found


def _names_pool(kind: ast.expr) -> bool:
    return any(
        isinstance(part, ast.Name | ast.Attribute) and _last(part) in _POOLS
        for part in ast.walk(kind)
    )


def _last(node: ast.expr) -> str:
    """The last word of a dotted name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def main(folders: list[str]) -> int:
    tops = [Path(folder) for folder in folders] or [ROOT / "holdfast"]
    files = sorted(path for top in tops for path in top.rglob("*.py") if path != OWNER)
    found = [one for path in files for one in findings(path, path.read_text())]
    for one in found:
        sys.stderr.write(f"{one}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
