"""The check for import cycles finds those that there are, and no others."""

from __future__ import annotations

from tests.lint.cycles import cycles, imports_of


def found(**modules: str) -> list[tuple[str, ...]]:
    return cycles(imports_of(modules))


def test_modules_that_import_downward_are_no_cycle() -> None:
    assert not found(a="import b\nimport c", b="from c import X", c="import sys")


def test_a_cycle_is_found_through_a_third_module_and_within_a_function() -> None:
    first, second = "import b", "def f():\n    from c import X"
    assert found(a=first, b=second, c="import a", d="import a") == [("a", "b", "c")]


def test_an_import_for_type_checkers_alone_counts() -> None:
    late = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from a import X"
    assert found(a="from b import Y", b=late) == [("a", "b")]


def test_a_submodule_that_is_named_by_its_package_is_found() -> None:
    modules = {"p": "", "p.a": "from p import b", "p.b": "from p import a"}
    assert cycles(imports_of(modules)) == [("p.a", "p.b")]
