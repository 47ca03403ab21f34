"""A user's file of tables: what is found in it, and what is said of one that cannot be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast.features import load_tables
from holdfast.wire.errors import Missing, Usage

BEGIN = "from holdfast import features\n"
DRIVERS = 'drivers = features.Table("drivers", key="driver_id", columns={"trips": "int64"})\n'
CITIES = (
    'cities = features.Table(\n    "cities", key="city",\n    columns={"people": "int64"},\n)\n'
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tables.py"


def refused(file: Path, text: str) -> Usage:
    file.write_text(text)
    with pytest.raises(Usage) as found:
        load_tables(file)
    return found.value


def test_tables_at_the_top_of_the_file_are_found_in_its_order(file: Path) -> None:
    file.write_text(BEGIN + CITIES + "also = cities\n" + DRIVERS)
    assert [table.name for table in load_tables(file)] == ["cities", "drivers"]
    assert [table.name for table in load_tables(str(file))] == ["cities", "drivers"]


def test_a_file_may_import_what_lies_beside_it_and_leaves_no_trace(file: Path) -> None:
    (file.parent / "shared_keys_of_tables.py").write_text('KEY = "driver_id"\n')
    file.write_text(
        BEGIN
        + "from shared_keys_of_tables import KEY\n"
        + 'a = features.Table("a", key=KEY, columns={"x": "bool"})\n'
    )
    path, modules = list(sys.path), set(sys.modules)
    assert load_tables(file)[0].key == ("driver_id",)
    assert sys.path == path
    assert set(sys.modules) - modules == {"shared_keys_of_tables"}
    del sys.modules["shared_keys_of_tables"]


def test_a_changed_file_is_read_anew(file: Path) -> None:
    for kind in ("int64", "int32"):
        file.write_text(BEGIN + DRIVERS.replace("int64", kind))
        assert str(load_tables(file)[0].column("trips").type) == kind


def test_a_table_that_cannot_be_is_refused_with_its_file_and_line(file: Path) -> None:
    error = refused(file, BEGIN + DRIVERS + CITIES.replace("int64", "itn64"))
    assert error.what == (
        f"{file}, line 3: table 'cities': column 'people': 'itn64' is no type of a column"
    )
    assert error.fix == "did you mean 'int64'?"


def test_a_table_that_cannot_be_within_a_function_names_the_line_that_makes_it(file: Path) -> None:
    text = 'def make(kind):\n    return features.Table("a", key="id", columns={"x": kind})\n'
    assert f"{file}, line 3: " in refused(file, BEGIN + text + 'a = make("it")\n').what


def test_two_tables_of_one_name_are_refused_with_both_lines(file: Path) -> None:
    error = refused(file, BEGIN + DRIVERS + "\n" + DRIVERS.replace("drivers =", "others ="))
    assert error.what == f"{file}, line 4: there is a table 'drivers' already"
    assert error.why == "it stands in line 2"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("drivers = features.Table(\n", 2, "'(' was never closed"),
        ("drivers = featurs.Table()\n", 2, "NameError: name 'featurs' is not defined"),
        ("import no_such_module_of_anybody\n", 2, "ModuleNotFoundError: No module named"),
        ("\n\nraise SystemExit(3)\n", 4, "SystemExit: 3"),
        ("1 / 0\n", 2, "ZeroDivisionError: division by zero"),
        ('a = features.Table("a", key="id")\n', 2, "TypeError: "),
        ('a = features.Table("a", key="id", colums={})\n', 2, "colums"),
    ],
)
def test_a_file_that_cannot_be_run_is_refused_with_the_line_and_the_words_of_python(
    file: Path, text: str, line: int, words: str
) -> None:
    error = refused(file, BEGIN + text)
    assert error.what.startswith(f"{file}, line {line}: ")
    assert words in error.what


def test_an_argument_that_no_table_has_is_refused_with_the_nearest_one(file: Path) -> None:
    error = refused(file, BEGIN + 'a = features.Table("a", key="id", colums={})\n')
    assert error.fix == "did you mean 'columns'?"


def test_the_users_own_traceback_comes_with_it(file: Path) -> None:
    error = refused(file, BEGIN + "def halve(x):\n    return x / 0\n\nhalve(3)\n")
    assert error.story == (
        f"{file}, line 5, in <module>: halve(3)",
        f"{file}, line 3, in halve: return x / 0",
    )


def test_a_file_without_a_table_says_how_one_is_written(file: Path) -> None:
    error = refused(file, BEGIN + "tables = []\n")
    assert error.what == f"{file} has no table"
    assert "features.Table(" in error.fix


def test_a_file_that_is_not_there_is_missing(file: Path) -> None:
    with pytest.raises(Missing, match="No such file"):
        load_tables(file)
    with pytest.raises(Missing, match="directory"):
        load_tables(file.parent)
