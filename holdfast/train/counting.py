"""`for i, batch in enumerate(run.batches(...))`: what is counted there are this worker's batches.

How many those are by a step depends on the number of workers and on who has died, so a loss that
depends on the count is another one on another number of workers. No comparison shows it: a batch
that is given twice may have counts on the same side of whatever is decided. So the loop is read
once, as text: a count that is only shown, or used behind `run.step`, is left alone.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from types import FrameType, FunctionType

from holdfast.wire.errors import Usage

# What shows a value and gives nothing back that a loss could use.
_SHOWS = frozenset({"print", "log", "debug", "info", "warning", "write", "set_description"})


def check(frame: FrameType) -> None:
    """Raise `Usage` if the `for` that this frame is at decides by such a count."""
    loop = _loop_at(frame)
    if loop is None or not isinstance(loop.iter, ast.Call):
        return
    wrapper = loop.iter.func
    if not isinstance(wrapper, ast.Name) or wrapper.id not in {"enumerate", "zip"}:
        return
    where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    if wrapper.id == "zip":
        raise Usage(
            f"zip(...) of a loop's batches with something else, at {where}",
            why="a worker has only the batches of its own lanes: what they are paired with would "
            "depend on the number of workers",
            fix="put both into one data set: torch.utils.data.StackDataset(a, b)",
        )
    target = loop.target
    count = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else None
    if isinstance(count, ast.Name) and (line := _use(loop, count.id)) is not None:
        at = frame.f_code.co_firstlineno + line - 1 if frame.f_code.co_name != "<module>" else line
        raise Usage(
            f"{count.id} of enumerate(run.batches(...)) is used before run.step, in "
            f"{frame.f_code.co_filename}:{at}",
            why="it counts the batches of this worker, so it depends on the number of workers",
            fix="use run.completed: the steps that are made, the same everywhere. To sum gradients "
            "over several batches, say run.accumulate(k) and count nothing",
        )


def names_read(frame: FrameType) -> frozenset[str]:
    """The variables that the `for` at which this frame is reads for a loss: in its body up to
    `run.step`, and in functions of the script that it calls there. What it only fills or shows is
    left out."""
    loop = _loop_at(frame)
    if loop is None:
        return frozenset()
    found: set[str] = set()
    for statement in loop.body:
        if not _is_shown(statement):
            found |= _loaded(statement)
        if any(_is_step(node) for node in ast.walk(statement)):
            break
    for name in list(found):
        value = frame.f_locals.get(name, frame.f_globals.get(name))
        value = getattr(value, "__wrapped__", value)  # the function of a lane, see `Run.lane`
        if isinstance(value, FunctionType) and value.__globals__ is frame.f_globals:
            found |= {*value.__code__.co_names, *value.__code__.co_freevars}
    return frozenset(found)


def _loaded(statement: ast.stmt) -> set[str]:
    """The names whose values the statement uses. `kept.append(x)` and `kept[i] = x` fill `kept`."""
    filled: set[int] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            called = node.value.func
            if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
                filled.add(id(called.value))
        elif isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                    filled.add(id(target.value))
    names = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
    return {it.id for it in names if isinstance(it.ctx, ast.Load) and id(it) not in filled}


def _loop_at(frame: FrameType) -> ast.For | None:
    """The `for` statement whose head is at this line; None if its text is not there."""
    try:
        lines, first = inspect.getsourcelines(frame.f_code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    here = frame.f_lineno - max(first, 1) + 1
    for node in ast.walk(tree):
        if isinstance(node, ast.For) and node.lineno <= here <= (node.iter.end_lineno or here):
            return node
    return None


def _use(loop: ast.For, name: str) -> int | None:
    """The line, counted from the function's first, in which the name may decide the loss."""
    for statement in loop.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and node.id == name and not _is_shown(statement):
                return node.lineno
        if any(_is_step(node) for node in ast.walk(statement)):
            return None
    return None


def _is_step(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return node.func.attr == "step"


def _is_shown(statement: ast.stmt) -> bool:
    """Whether it only decides what people see."""
    if isinstance(statement, ast.If) and all(_shows(each) for each in statement.body):
        return not statement.orelse
    return _shows(statement)


def _shows(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    called = statement.value.func
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name in _SHOWS
