"""A user's file of tables. It is a program, and is run: its folder can be imported from while it
runs, and what it imports stays imported."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import traceback
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Final

from holdfast.features.columns import nearest
from holdfast.features.table import Table
from holdfast.wire.errors import Missing, Usage

_MODULE: Final = "holdfast_tables"
# Of the user's own traceback: what tells where it went wrong, and not how it got there.
_FRAMES_MAX: Final = 8
_UNEXPECTED: Final = re.compile(r"unexpected keyword argument '(\w+)'")
_EXAMPLE: Final = 'drivers = features.Table("drivers", key="driver_id", columns={"trips": "int64"})'


def load_tables(path: str | Path) -> list[Table]:
    """The tables that stand at the top of the file, by names of their own, in its order. `Missing`:
    there is no file. `Usage`, with the file, the line and the user's own words: it cannot be run,
    or a table in it cannot be."""
    file = Path(path)
    try:
        source = file.read_bytes()
    except OSError as error:
        raise Missing(
            f"{file} cannot be read",
            why=error.strerror or str(error),
            fix="name a Python file that has tables",
        ) from error
    found = _run(file, _compiled(file, source))
    tables = [value for value in found.__dict__.values() if isinstance(value, Table)]
    # One table may have two names in the file; two tables may not have one.
    tables = list({id(table): table for table in tables}.values())
    if not tables:
        raise Usage(
            f"{file} has no table",
            why="a table is found by a name at the top of the file",
            fix=f"write {_EXAMPLE}",
        )
    _check_names(file, source, found, tables)
    return tables


def _compiled(file: Path, source: bytes) -> CodeType:
    try:
        return compile(source, str(file), "exec")
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        text = getattr(error, "text", None) or ""
        raise Usage(
            f"{file}, line {line}: {getattr(error, 'msg', None) or error}",
            why=text.strip(),
            fix="it has to be a Python program",
        ) from error


def _run(file: Path, code: CodeType) -> ModuleType:
    module = ModuleType(_MODULE)
    module.__file__ = str(file)
    folder = str(file.parent.absolute())
    sys.path.insert(0, folder)
    sys.modules[_MODULE] = module  # what it defines looks for its module
    try:
        exec(code, module.__dict__)  # noqa: S102 (the user's own program)
    except Usage as error:
        line = _line(file, error.__traceback__)
        what = f"{file}, line {line}: {error.what}"
        raise Usage(what, why=error.why, fix=error.fix, story=error.story) from error
    except (Exception, SystemExit) as error:
        line = _line(file, error.__traceback__)
        words = f"{type(error).__name__}: {error}".strip().removesuffix(":")
        raise Usage(
            f"{file}, line {line}: {words}",
            why="the file is run to find its tables, and did not come to its end",
            fix=_meant(str(error)) or "mend it there: `python` runs it, too",
            story=_frames(file, error.__traceback__),
        ) from error
    finally:
        sys.modules.pop(_MODULE, None)
        if folder in sys.path:
            sys.path.remove(folder)
    return module


def _meant(words: str) -> str:
    """The argument of a table that was meant by one that it does not have."""
    found = _UNEXPECTED.search(words)
    return nearest(found[1], inspect.signature(Table).parameters) if found else ""


def _line(file: Path, begin: TracebackType | None) -> int:
    """The line of the file itself, the innermost of them, where it went wrong."""
    lines = [frame.lineno for frame in traceback.extract_tb(begin) if frame.filename == str(file)]
    return (lines[-1] if lines else None) or 1


def _frames(file: Path, begin: TracebackType | None) -> list[str]:
    """The traceback from the file on."""
    frames = traceback.extract_tb(begin)
    first = next((at for at, frame in enumerate(frames) if frame.filename == str(file)), 0)
    return [
        f"{frame.filename}, line {frame.lineno}, in {frame.name}: {frame.line}"
        for frame in frames[first:][-_FRAMES_MAX:]
    ]


def _check_names(file: Path, source: bytes, module: ModuleType, tables: list[Table]) -> None:
    lines = _assigned(source)
    variables = {id(value): name for name, value in module.__dict__.items()}
    seen: dict[str, int] = {}
    for table in tables:
        line = lines.get(variables[id(table)], 1)
        if table.name in seen:
            raise Usage(
                f"{file}, line {line}: there is a table {table.name!r} already",
                why=f"it stands in line {seen[table.name]}",
                fix="give one of them another name",
            )
        seen[table.name] = line


def _assigned(source: bytes) -> dict[str, int]:
    """In which line each name at the top of the file is last assigned."""
    found = {}
    for statement in ast.parse(source).body:
        targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
        for target in targets:
            if isinstance(target, ast.Name):
                found[target.id] = statement.lineno
    return found
