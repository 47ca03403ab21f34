"""A cluster's folder: made once, found from anywhere, moved as a whole."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from holdfast.cli.run.command import default_folder as run_folder
from holdfast.cluster import CLUSTER_VARIABLE, create, default_folder, find, opened
from holdfast.cluster.folder import readdressed
from holdfast.launch import local
from holdfast.storage.selection import selected
from holdfast.system.certificates import Authority
from holdfast.wire.errors import Corrupt, Missing, Occupied, Usage


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cluster of the person who runs the tests is meant."""
    monkeypatch.delenv(CLUSTER_VARIABLE, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "homeless"))
    monkeypatch.chdir(tmp_path)


def test_a_cluster_is_read_back_as_it_was_made(tmp_path: Path) -> None:
    made = create(tmp_path / "c", name="mine", store="s3://bucket/x?endpoint=http://127.0.0.1:9")
    assert opened(tmp_path / "c") == made
    assert made.coordination == f"embedded:{tmp_path}/c/coordination"
    assert made.store.startswith("s3://bucket/x")


def test_a_second_cluster_is_not_made_over_the_first(tmp_path: Path) -> None:
    first = create(tmp_path / "c", name="first")
    with pytest.raises(Occupied):
        create(tmp_path / "c", name="second")
    assert opened(tmp_path / "c") == first


def test_a_folder_that_was_moved_is_a_cluster_still(tmp_path: Path) -> None:
    create(tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    moved = opened(tmp_path / "new")
    assert moved.coordination == f"embedded:{tmp_path}/new/coordination"
    assert moved.store == f"file:{tmp_path}/new/store"


def test_the_given_folder_comes_first_then_the_variable_then_here_then_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = create(tmp_path / "homeless" / ".holdfast")
    assert find() == home
    below = tmp_path / "project" / "src" / "deep"
    below.mkdir(parents=True)
    here = create(tmp_path / "project" / ".holdfast")
    monkeypatch.chdir(below)
    assert find() == here
    assert default_folder() == here.folder
    named = create(tmp_path / "named")
    monkeypatch.setenv(CLUSTER_VARIABLE, str(named.folder))
    assert find() == named
    given = create(tmp_path / "given")
    assert find(given.folder) == given


def test_a_new_cluster_is_of_the_project_where_a_run_would_make_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert default_folder() == tmp_path / ".holdfast"
    below = tmp_path / "project" / "src"
    below.mkdir(parents=True)
    (tmp_path / "project" / ".git").mkdir()
    monkeypatch.chdir(below)
    assert default_folder() == tmp_path / "project" / ".holdfast" == run_folder(below / "train.py")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert default_folder() == tmp_path / "homeless" / ".holdfast"


def test_no_cluster_anywhere_is_an_error_with_the_command_that_makes_one() -> None:
    with pytest.raises(Missing) as missing:
        find()
    assert missing.value.fix == "holdfast up"


def test_a_variable_that_names_no_cluster_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(tmp_path / ".holdfast")
    monkeypatch.setenv(CLUSTER_VARIABLE, str(tmp_path / "typo"))
    with pytest.raises(Missing, match="typo"):
        find()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 1, "name": "x"}'])
def test_a_damaged_file_is_told_and_not_guessed(tmp_path: Path, text: str) -> None:
    create(tmp_path / "c")
    (tmp_path / "c" / "cluster.json").write_text(text)
    with pytest.raises(Corrupt):
        opened(tmp_path / "c")


def test_a_file_of_a_later_format_is_refused(tmp_path: Path) -> None:
    create(tmp_path / "c")
    path = tmp_path / "c" / "cluster.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 3}))
    with pytest.raises(Corrupt) as corrupt:
        opened(tmp_path / "c")
    assert "format" in corrupt.value.why


@pytest.mark.parametrize("address", ["memory:x", "ftp://x", "s3://"])
def test_a_store_that_processes_cannot_share_is_refused_before_anything_is_made(
    tmp_path: Path, address: str
) -> None:
    with pytest.raises(Usage):
        create(tmp_path / "c", store=address)
    assert not (tmp_path / "c").exists()


def test_a_wrong_address_of_the_plane_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(Usage):
        create(tmp_path / "c", coordination="zookeeper://x")
    assert not (tmp_path / "c").exists()


def test_a_cluster_within_a_project_is_no_part_of_its_code(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text("print(1)\n")
    local.make(project / ".holdfast")
    assert [str(path) for path in selected(project)] == ["train.py"]


def test_only_its_owner_can_read_the_authoritys_key(tmp_path: Path) -> None:
    made = local.make(tmp_path / "c")
    mode = (made.authority_folder / "authority.key").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600
    assert stat.S_IMODE(made.authority_folder.stat().st_mode) == 0o700
    assert made.is_home


def test_others_reach_an_embedded_plane_by_the_address_where_it_listens(tmp_path: Path) -> None:
    local_only = create(tmp_path / "a")
    assert local_only.coordination_for_others == local_only.coordination
    shown = create(
        tmp_path / "b", coordination="embedded:coordination?listen=10.0.0.5:2181&timeout_s=7"
    )
    assert shown.coordination_for_others == "zk://10.0.0.5:2181?timeout_s=7&verify=secret"
    ensemble = create(tmp_path / "c", coordination="zk://h1,h2/ml")
    assert ensemble.coordination_for_others == "zk://h1,h2/ml"


@pytest.mark.parametrize("listen", ["0.0.0.0", "::", "", "203.0.113.7"])
def test_an_address_that_others_could_not_use_is_refused(tmp_path: Path, listen: str) -> None:
    with pytest.raises(Usage):
        local.make(tmp_path / "c", listen=listen)
    assert not (tmp_path / "c").exists()


def test_what_a_maker_that_was_killed_has_left_does_not_hinder_the_next_one(
    tmp_path: Path,
) -> None:
    half = tmp_path / "c" / "authority"
    half.mkdir(parents=True)
    (half / "authority.key").write_text("half a key")
    made = local.make(tmp_path / "c", name="other")
    assert made.is_home
    assert Authority.open(made.authority_folder).cluster == "other"


def test_a_second_maker_leaves_the_first_ones_authority_alone(tmp_path: Path) -> None:
    made = local.make(tmp_path / "c")
    before = (made.authority_folder / "authority.key").read_bytes()
    with pytest.raises(Occupied):
        local.make(tmp_path / "c")
    assert (made.authority_folder / "authority.key").read_bytes() == before


def test_a_copy_of_the_authority_brings_the_secret_of_an_ensemble(tmp_path: Path) -> None:
    first = local.make(tmp_path / "first", coordination="zk://127.0.0.1:1/ml")
    second = create(tmp_path / "second", coordination="zk://127.0.0.1:1/ml")
    shutil.copytree(first.authority_folder, second.authority_folder)
    assert second.access() == first.access()
    second.access_file.unlink()
    assert second.access() == first.access()


def test_where_other_machines_reach_the_server_they_are_told_to_speak_tls(tmp_path: Path) -> None:
    for name, address, expected in (
        ("a", "embedded:coordination?listen=10.0.0.5:2181", "&verify=secret"),
        ("b", "embedded:coordination?listen=10.0.0.5:2181&network=trusted", ""),
        ("c", "embedded:coordination?listen=127.0.0.1:2181", ""),
    ):
        made = create(tmp_path / name, coordination=address)
        assert made.coordination_for_others.endswith(f":2181?timeout_s=10{expected}")


def test_a_machine_that_joins_again_takes_the_address_that_it_is_told(tmp_path: Path) -> None:
    old = create(tmp_path / "c", coordination="zk://10.0.0.5:2181?timeout_s=10")
    new = readdressed(old, "zk://10.0.0.5:2181?timeout_s=10&verify=secret")
    assert opened(tmp_path / "c") == new
    assert new.store == old.store
    assert readdressed(new, new.coordination) == new
