"""Style is a test: small rooms, said promises, nothing left over."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60

# Assembled, so that this file does not find itself.
LEFT_OVER = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X"]) + r")\b")
HOMES = ["wo" + "rk/(?:main|shared)", "ro" + "ot/\\.?\\w", "ho" + "me/\\w"]
OF_ONE_MACHINE = re.compile(r"(?<![\w.])/(?:" + "|".join(HOMES) + r")")


@cache
def files() -> tuple[Path, ...]:
    """What git has or would take; a tree without git is walked."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        found = [ROOT / name for name in done.stdout.splitlines()]
    else:
        tops = ("holdfast", "tests", "bench", "examples", "docs", "simulation")
        found = [path for top in tops for path in (ROOT / top).rglob("*")]
    return tuple(sorted(path for path in found if path.is_file()))


def modules() -> list[Path]:
    return [path for path in files() if path.suffix == ".py"]


def texts() -> Iterator[tuple[str, str]]:
    for path in files():
        try:
            yield str(path.relative_to(ROOT)), path.read_text()
        except UnicodeDecodeError:
            continue


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def definitions(path: Path) -> Iterator[Definition]:
    """Functions and classes, also within others. Only statements hold one: a walk over all that is
    in them would take most of the time."""
    left: list[ast.AST] = [tree(path)]
    while left:
        node = left.pop()
        if isinstance(node, Definition):
            yield node
        for part in ("body", "orelse", "handlers", "finalbody", "cases"):
            found = getattr(node, part, ())
            left.extend(found if isinstance(found, list) else ())


def test_there_is_something_to_look_at() -> None:
    assert len(modules()) > 10


def test_a_file_is_at_most_six_hundred_lines_long() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in modules()}
    long = [
        f"{path.relative_to(ROOT)}: {lines} lines"
        for path, lines in lengths.items()
        if lines > FILE_LINES_MAX
    ]
    assert not long, "split these:\n" + "\n".join(long)


def test_a_function_has_at_most_sixty_lines() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {node.end_lineno - node.lineno + 1}"
        for path in modules()
        for node in definitions(path)
        if not isinstance(node, ast.ClassDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert not long, "split these:\n" + "\n".join(long)


def test_a_class_name_means_one_thing_in_the_whole_package() -> None:
    homes: dict[str, list[str]] = {}
    for path in modules():
        if path.is_relative_to(ROOT / "holdfast"):
            for node in definitions(path):
                if isinstance(node, ast.ClassDef):
                    name = node.name.lstrip("_")
                    homes.setdefault(name, []).append(str(path.relative_to(ROOT)))
    shared = [
        f"{name}: {', '.join(sorted(places))}"
        for name, places in sorted(homes.items())
        if len(places) > 1
    ]
    assert not shared, "give the internal one a longer name:\n" + "\n".join(shared)


def test_every_module_says_in_its_docstring_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT)) for path in modules() if not ast.get_docstring(tree(path))
    ]
    assert not silent, "\n".join(silent)


def test_nothing_is_left_to_do_in_a_comment() -> None:
    found = [name for name, text in texts() if LEFT_OVER.search(text)]
    assert not found, "\n".join(found)


def test_no_path_of_one_persons_machine_is_written_down() -> None:
    found = [
        f"{name}: {match.group(0)}"
        for name, text in texts()
        for match in OF_ONE_MACHINE.finditer(text)
    ]
    assert not found, "\n".join(found)


def test_only_the_command_line_prints() -> None:
    printing = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in modules()
        if path.is_relative_to(ROOT / "holdfast")
        and not path.is_relative_to(ROOT / "holdfast/cli")
        and path.name != "__main__.py"
        and "print(" in path.read_text()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert not printing, "log it, or return it:\n" + "\n".join(printing)


def test_no_test_is_switched_off() -> None:
    off = re.compile(r"mark\.(?:" + "|".join(["ski" + "p", "xfa" + "il"]) + r")\b")
    found = [name for name, text in texts() if name.startswith("tests/") and off.search(text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("text", ["/wo" + "rk/main", "in /ro" + "ot/x", "'/ho" + "me/me/data'"])
def test_the_search_for_machine_paths_finds_one(text: str) -> None:
    assert OF_ONE_MACHINE.search(text)


@pytest.mark.parametrize("text", ["a/wo" + "rk/b", "~/.ro" + "ot/x", "./ho" + "me/x"])
def test_the_search_for_machine_paths_leaves_relative_ones_alone(text: str) -> None:
    assert not OF_ONE_MACHINE.search(text)
