"""The registry of mutants fits the code: what it would break is there, and no sync is left out."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutants import MUTANTS, syncs
from tests.mutants.mutant import Mutant

ROOT = Path(__file__).parents[2]
SYNCS = {"fsync", "fdatasync", "sync_folder", "confirm"}
# What only passes on a call that is made elsewhere, or is the thing itself.
THE_THING_ITSELF = {
    ("holdfast/storage/blobs.py", "confirm"),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_what_a_mutant_changes_is_once_in_its_file(mutant: Mutant) -> None:
    found = (ROOT / mutant.file).read_text().count(mutant.old)
    assert found == 1, f"{mutant.name}: its text is {found} times in {mutant.file}"
    changed = (ROOT / mutant.file).read_text().replace(mutant.old, mutant.new)
    ast.parse(changed)


@pytest.mark.parametrize("test", sorted({mutant.test for mutant in MUTANTS}))
def test_what_a_mutant_is_found_by_is_there(test: str) -> None:
    assert (ROOT / test.split(maxsplit=1)[0]).is_file()


def test_two_mutants_have_different_names() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)


def calls() -> Iterator[tuple[str, int, str]]:
    """Where something is made durable: file, line, what is called."""
    for path in sorted((ROOT / "holdfast").rglob("*.py")):
        name = str(path.relative_to(ROOT))
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            function = node.func
            called = getattr(function, "attr", getattr(function, "id", ""))
            if called in SYNCS and (name, called) not in THE_THING_ITSELF:
                yield name, node.lineno, called


def test_a_sync_can_be_removed_and_no_mutant_says_which_test_finds_it() -> None:
    assert len(list(calls())) > 25
    covered = set()
    for mutant in MUTANTS:
        text = (ROOT / mutant.file).read_text()
        first = text[: text.index(mutant.old)].count("\n") + 1
        covered |= {
            (mutant.file, first + offset)
            for offset, line in enumerate(mutant.old.splitlines())
            if line not in mutant.new.splitlines()
        }
    missing = [
        f"{file}:{line} {called}"
        for file, line, called in calls()
        if (file, line) not in covered and file not in syncs.NEEDLESS
    ]
    assert not missing, "add them to tests/mutants/syncs.py:\n" + "\n".join(missing)
