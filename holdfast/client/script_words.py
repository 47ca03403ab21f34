"""What a script's own text says: into how many lanes it divides a step, and which options it knows.
Pure; nothing of it is run."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_LAUNCH: Final = "launch"
_LANES: Final = "lanes"
# How like one of ours an option must be to be taken for a slip of the hand.
_NEAR: Final = 0.8
# Options of other commands, and what `holdfast run` has instead.
_ELSEWHERE: Final[Mapping[str, str]] = {
    "--cluster": "holdfast run needs no cluster (--dir says where it keeps what it makes); "
    "a job of a cluster: holdfast submit JOB.YAML",
    "--agents": "holdfast run starts what it needs; how many processes: --workers",
    "--queue": "queues are of a cluster: holdfast submit JOB.YAML",
    "--priority": "priorities are of a cluster: holdfast submit JOB.YAML",
    "--env": "the script has the environment of this command: NAME=VALUE holdfast run …",
    "--gpus": "holdfast run has --gpu, for each worker",
    "--cpus": "holdfast run has --cpu, for each worker",
}


@dataclass(frozen=True, slots=True)
class ScriptLanes:
    """`train.launch(main, lanes=…)` of a script. `count` None: only known when it runs."""

    count: int | None
    line: int


def lanes_in(source: str) -> ScriptLanes | None:
    """What the script says itself; None: nothing, or it cannot be read as Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # whoever runs it says so
        return None
    found = [
        ScriptLanes(_number(keyword.value, tree), keyword.value.lineno)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and _name(call.func) == _LAUNCH
        for keyword in call.keywords
        if keyword.arg == _LANES and not _is_none(keyword.value)
    ]
    if not found:
        return None
    if len({each.count for each in found}) > 1:
        return ScriptLanes(None, found[0].line)
    return found[0]


def strange_options(
    arguments: Sequence[str], source: str, ours: Collection[str]
) -> list[tuple[str, str]]:
    """Options among the script's arguments that it does not name and that somebody may have meant
    for us: each with what we have. `ours`: the options of `holdfast run`."""
    found = []
    for word in arguments:
        name = word.partition("=")[0]
        if not name.startswith("--") or _names(source, name):
            continue
        near = difflib.get_close_matches(name, sorted(ours), n=1, cutoff=_NEAR)
        if name in _ELSEWHERE:
            found.append((name, _ELSEWHERE[name]))
        elif near:
            found.append((name, f"holdfast run has {near[0]}"))
    return found


def _name(called: ast.expr) -> str:
    if isinstance(called, ast.Attribute):
        return called.attr
    return called.id if isinstance(called, ast.Name) else ""


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _number(value: ast.expr, tree: ast.Module) -> int | None:
    """A number that stands there, or a name that is given one number at the top of the script and
    nothing else anywhere."""
    if isinstance(value, ast.Constant):
        count = value.value
        return count if isinstance(count, int) and count is not True and count > 0 else None
    if not isinstance(value, ast.Name):
        return None
    stored = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id == value.id and isinstance(node.ctx, ast.Store)
    ]
    given = [
        each.value
        for each in tree.body
        if isinstance(each, ast.Assign | ast.AnnAssign)
        and stored
        and stored[0] in (each.targets if isinstance(each, ast.Assign) else [each.target])
    ]
    if len(stored) != 1 or not given or not isinstance(given[0], ast.Constant):
        return None
    return _number(given[0], tree)


def _names(source: str, option: str) -> bool:
    """Whether the option stands in the text, as it is or as the name that parsers make of it."""
    plain = re.escape(option.lstrip("-")).replace(r"\-", "[-_]")
    return re.search(rf"(?<![\w-]){plain}(?![\w-])|--{plain}(?![\w-])", source) is not None
