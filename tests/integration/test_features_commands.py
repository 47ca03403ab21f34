"""`holdfast features` on a cluster's own Valkey: declared, written, read, changed, removed; and
what becomes of rows when it is killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Client
from holdfast.features import hosting
from holdfast.launch import local
from holdfast.wire.errors import Conflict, Missing, Usage
from tests.integration.clusters import Home
from tests.waiting import eventually

TABLES = """
from holdfast import features

drivers = features.Table("drivers", key="driver_id", ttl="7d", columns={
    "trips": "int64", "rating": "float32", "taste": "float32[3]", "city": "string"{more}
}{said})
views = features.Table("views", key=["user", "item"], consistency="bounded: 5s",
                       columns={"seen": "int64"})
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    home = Home(tmp_path_factory.mktemp("features") / "cluster")
    try:
        home.up(supervised=True)
        yield home
    finally:
        home.end()


def declared(home: Home, more: str = "", said: str = "") -> Path:
    file = home.marks / "tables.py"
    file.write_text(TABLES.replace("{more}", more).replace("{said}", said))
    return file


def shown(home: Home, *words: str, given: str | None = None) -> Any:
    return json.loads(home.command("features", *words, "--json", given=given))


def test_a_table_is_declared_written_read_changed_and_deleted_from(up: Home) -> None:
    file = str(declared(up))
    planned = shown(up, "apply", file, "--dry-run")
    assert [one["state"] for one in planned["tables"]] == ["new", "new"]
    assert shown(up, "list")["tables"] == []
    up.command("features", "apply", file)
    assert "nothing is to be changed" in up.command("features", "apply", file)
    assert [one["name"] for one in shown(up, "list")["tables"]] == ["drivers", "views"]

    row = {"driver_id": "d7", "trips": 12, "rating": 4.5, "taste": [1, 2, 3], "city": "Roma"}
    assert shown(up, "put", "drivers", json.dumps(row)) == {
        "table": "drivers",
        "written": 1,
        "newer_there": 0,
    }
    found = shown(up, "get", "drivers", "d7")
    assert found["values"] == {"trips": 12, "rating": 4.5, "taste": [1, 2, 3], "city": "Roma"}
    late = {"driver_id": "d7", "at": "2026-11-17T00:00:00Z", "trips": 1}
    assert shown(up, "put", "drivers", json.dumps(late))["newer_there"] == 1
    assert shown(up, "get", "drivers", "d7")["values"]["trips"] == 12

    lines = "".join(f'{{"user": "u{n}", "item": "i", "seen": {n}}}\n' for n in range(2_500))
    assert shown(up, "put", "views", given=lines)["written"] == 2_500
    assert shown(up, "get", "views", "u2499", "i")["values"] == {"seen": 2_499}

    changed = shown(up, "apply", str(declared(up, ', "km": "float64"', ', retired="rating"')))
    assert changed["tables"][0]["added"] == ["km"]
    assert changed["tables"][0]["retired"] == ["rating"]
    assert shown(up, "get", "drivers", "d7")["values"] == {
        "trips": 12,
        "taste": [1, 2, 3],
        "city": "Roma",
        "km": None,
    }
    up.command("features", "delete", "drivers", "d7")
    assert shown(up, "get", "drivers", "d7")["deleted"]
    late["at"] = found["at"]
    assert shown(up, "put", "drivers", json.dumps(late))["newer_there"] == 1
    assert "features" in up.command("status")


def test_what_was_acknowledged_is_there_after_kills_and_after_down(up: Home) -> None:
    up.command("features", "apply", str(declared(up, ', "km": "float64"', ', retired="rating"')))
    for number in range(3):
        shown(up, "put", "drivers", json.dumps({"driver_id": f"k{number}", "trips": number}))
        up.kill(hosting.KIND)
        eventually(lambda: hosting.lives(up.cluster.folder), "it is started again")
    assert [shown(up, "get", "drivers", f"k{n}")["values"]["trips"] for n in range(3)] == [0, 1, 2]
    local.down(up.cluster)
    assert not hosting.lives(up.cluster.folder)
    up.up(supervised=True)
    assert [shown(up, "get", "drivers", f"k{n}")["values"]["trips"] for n in range(3)] == [0, 1, 2]


def test_a_table_that_is_removed_and_made_again_has_no_rows(up: Home) -> None:
    file = up.marks / "gone.py"
    text = 'from holdfast import features\ngone = features.Table("gone", key="k", columns={'
    file.write_text(text + '"a": "int64"})\n')
    up.command("features", "apply", str(file))
    shown(up, "put", "gone", '{"k": "x", "a": 1}')
    assert "--yes" in up.refused("features", "remove", "gone").fix
    up.command("features", "remove", "gone", "--yes")
    up.refused("features", "get", "gone", "x", of=Missing)
    # Other columns: a row of before would be read as something else.
    file.write_text(text + '"b": "float64"})\n')
    up.command("features", "apply", str(file))
    up.refused("features", "get", "gone", "x", of=Missing)
    shown(up, "put", "gone", '{"k": "x", "b": 0.5}')
    assert shown(up, "get", "gone", "x")["values"] == {"b": 0.5}
    up.command("features", "remove", "gone", "--yes")


def test_what_is_wrong_is_refused_and_nothing_of_it_is_written(up: Home) -> None:
    up.command("features", "apply", str(declared(up, ', "km": "float64"', ', retired="rating"')))
    for row, of in (
        ('{"driver_id": "bad", "trips": "many"}', Usage),
        ('{"driver_id": "bad", "tripz": 1}', Usage),
        ('{"driver_id": null, "trips": 1}', Usage),
        ('{"trips": 1}', Usage),
        ('{"driver_id": "bad", "at": "2999-01-01T00:00:00Z", "trips": 1}', Usage),
        ('{"driver_id": "bad", "city": "' + "x" * 2_000_000 + '"}', Usage),
        ("[1, 2]", Usage),
        ("nonsense", Usage),
    ):
        up.refused("features", "put", "drivers", row, of=of)
    two = '{"driver_id": "bad", "trips": 1}\n{"driver_id": "bad", "trips": "x"}\n'
    up.refused("features", "put", "drivers", of=Usage, given=two)
    up.refused("features", "get", "drivers", "bad", of=Missing)
    up.refused("features", "get", "driverz", "bad", of=Missing)
    up.refused("features", "get", "views", "only-one-part", of=Usage)
    file = up.marks / "other.py"
    file.write_text(
        "from holdfast import features\n"
        'drivers = features.Table("drivers", key="driver_id", columns={"trips": "float64"})\n'
    )
    assert "trips" in str(up.refused("features", "apply", str(file), of=Conflict).why)


def test_readers_follow_a_change_and_see_every_table_in_one_read(up: Home) -> None:
    up.command("features", "apply", str(declared(up, ', "km": "float64"', ', retired="rating"')))
    with Client(up.cluster.folder) as client, client.features() as features:
        features.put("drivers", {"driver_id": "r1", "trips": 5})
        features.put("views", {"user": "r1", "item": "i", "seen": 3})
        found = features.read(
            {"drivers": ["r1", "nobody"], "views": {"user": ["r1"], "item": ["i"]}}
        )
        assert found["drivers"].present.tolist() == [True, False]
        assert found["drivers"].columns["trips"][0] == 5
        assert found["views"].columns["seen"].tolist() == [3]
        more = ', "km": "float64", "hours": "int32"'
        up.command("features", "apply", str(declared(up, more, ', retired="rating"')))
        shown(up, "put", "drivers", '{"driver_id": "r1", "trips": 6, "hours": 2}')

        def follows() -> bool:
            return "hours" in features.read({"drivers": ["r1"]})["drivers"].columns

        eventually(follows, "the reader knows the new column")
        assert features.read({"drivers": ["r1"]})["drivers"].columns["hours"].tolist() == [2]
