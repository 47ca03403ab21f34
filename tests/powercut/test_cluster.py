"""A cluster's own files on a disk that forgets: its folder, its authority, its credentials."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.credential_store import CredentialStore, made_by
from holdfast.cluster import create, described, opened
from holdfast.coordination import access
from holdfast.launch import local, serving
from holdfast.supervise import wanted
from holdfast.supervise.records import Process
from holdfast.system import disk as product
from holdfast.system.certificates import Authority
from holdfast.wire.errors import Missing
from tests.powercut.images import survives
from tests.powercut.scenes import new_disk, restarts


def test_a_cluster_that_was_made_is_lost_or_half_there_after_a_power_cut(tmp_path: Path) -> None:
    disk = new_disk(tmp_path / "disk")
    with disk:
        made = local.make(disk.folder / "deep" / "cluster", name="c")
        trust_pem = made.authority().trust_pem
        disk.acknowledge("made")

    def is_whole(folder: Path, promised: tuple[Any, ...]) -> None:
        try:
            found = opened(folder / "deep" / "cluster")
        except Missing:
            assert not promised
            found = local.make(folder / "deep" / "cluster", name="c")
        assert not promised or found.authority().trust_pem == trust_pem
        assert found.authority().cluster == "c"

    assert survives(disk, tmp_path, is_whole) > 10


def test_the_secret_of_a_plane_is_lost_or_half_there_after_a_power_cut(tmp_path: Path) -> None:
    disk = new_disk(tmp_path / "disk")
    with disk:
        product.make_folder(disk.folder / "plane")
        secret = access.kept(disk.folder / "plane" / "secret").secret
        disk.acknowledge("made")

    def is_whole(folder: Path, promised: tuple[Any, ...]) -> None:
        path = folder / "plane" / "secret"
        if promised:
            assert access.read(path).secret == secret, "nobody could open the plane any more"
        elif path.parent.exists():
            assert access.kept(path).secret

    assert survives(disk, tmp_path, is_whole) > 2


def test_papers_of_a_node_are_lost_or_half_there_after_a_power_cut(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "authority", "c")
    disk = new_disk(tmp_path / "disk")
    with disk:
        credential_store = made_by(authority, disk.folder / "deep" / "credential_store", "node")
        tokens = [credential_store.credentials.token]
        disk.acknowledge(0)
        credential_store.store(made_by(authority, tmp_path / "elsewhere", "node").credentials)
        tokens.append(credential_store.credentials.token)
        disk.acknowledge(1)

    def is_whole(folder: Path, promised: tuple[Any, ...]) -> None:
        try:
            credentials = CredentialStore.open(folder / "deep" / "credential_store").credentials
        except Missing:
            assert not promised
        else:
            # The second one was on its way, or has come.
            assert credentials.token in tokens[max(promised, default=0) :]

    assert survives(disk, tmp_path, is_whole) > 5


def test_an_authority_that_was_made_is_lost_or_half_there_after_a_power_cut(
    tmp_path: Path,
) -> None:
    disk = new_disk(tmp_path / "disk")
    with disk:
        lent = Authority.make(disk.folder / "deep" / "authority", "c").lent()
        disk.acknowledge("made")

    def is_whole(folder: Path, promised: tuple[Any, ...]) -> None:
        try:
            found = Authority.open(folder / "deep" / "authority")
        except Missing:
            assert not promised
        else:
            assert found.lent() == lent

    assert survives(disk, tmp_path, is_whole) > 5


def test_a_lent_authority_is_lost_or_half_there_after_a_power_cut(tmp_path: Path) -> None:
    lent = Authority.make(tmp_path / "authority", "c").lent()
    disk = new_disk(tmp_path / "disk")
    with disk:
        Authority.keep(disk.folder / "deep" / "standby", *lent)
        disk.acknowledge("kept")

    def is_whole(folder: Path, promised: tuple[Any, ...]) -> None:
        counts = (folder / "deep" / "standby" / "authority.key").exists()
        assert counts or not promised
        if counts:
            assert Authority.open(folder / "deep" / "standby").lent() == lent

    assert survives(disk, tmp_path, is_whole) > 5


def test_the_gateways_of_a_machine_are_lost_or_half_there_after_a_power_cut(
    tmp_path: Path,
) -> None:
    disk = new_disk(tmp_path / "disk")
    with disk:
        for number in (1, 2):
            place = serving.GatewayAddress(f"127.0.0.1:{number}", "")
            serving._write(described(disk.folder, name="c"), {"gateway-1": place})
            disk.acknowledge(place.listen)

    def is_whole(folder: Path, promised: tuple[Any, ...]) -> None:
        path = serving._path(described(folder, name="c"))
        assert path.exists() or not promised
        if path.exists():
            listen = json.loads(path.read_text())["gateways"]["gateway-1"]["listen"]
            assert not promised or int(listen[-1]) >= int(promised[-1][-1])

    assert survives(disk, tmp_path, is_whole) > 3


def test_what_is_wanted_or_that_nothing_is_is_forgotten_after_a_power_cut(tmp_path: Path) -> None:
    disk = new_disk(tmp_path / "disk")
    with disk:
        folder = create(disk.folder / "cluster").folder
        disk.acknowledge("made")
        wanted.want(folder, [(Process("agent", "n", 7, 7, "b"), ("agent", "--node", "n"))])
        disk.acknowledge("wanted")
        wanted.end(folder)
        disk.acknowledge("down")

    def is_whole(folder: Path, promised: tuple[Any, ...]) -> None:
        found = wanted.read(folder / "cluster")
        if "down" in promised:
            assert wanted.is_down(folder / "cluster") and not found
        elif "wanted" in promised and not wanted.is_down(folder / "cluster"):
            assert found["agent n"].command == ("agent", "--node", "n")

    assert survives(disk, tmp_path, is_whole) > 3


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_that_is_replaced_is_neither_the_old_one_nor_the_new_one(
    tmp_path: Path, durable: bool
) -> None:
    """And the same code without its syncs is found out: the disk does forget."""
    disk = new_disk(tmp_path / "disk")
    with disk:
        for number in range(3):
            path, data = disk.folder / "file", b"%d" % number
            if durable:
                product.replace_durably(path, data)
            else:
                product.draft(path.with_suffix(".tmp"), data)
                path.with_suffix(".tmp").replace(path)
            disk.acknowledge(number)

    def is_one(folder: Path, promised: tuple[Any, ...]) -> None:
        path = folder / "file"
        assert path.exists() or not promised
        if path.exists():
            assert int(path.read_bytes()) in {*promised[-1:], len(promised)}

    if durable:
        assert survives(disk, tmp_path, is_one) > 3
    else:
        with pytest.raises(AssertionError, match="after a power cut"):
            survives(disk, tmp_path, is_one)


def test_a_folder_is_lost_whose_maker_was_killed_before_it_was_synced(tmp_path: Path) -> None:
    """The next process finds it there, and writes into it."""
    for disk in restarts(tmp_path, lambda disk: product.make_folder(disk.folder / "a" / "b" / "c")):
        with disk:
            product.make_folder(disk.folder / "a" / "b" / "c")
            product.replace_durably(disk.folder / "a" / "b" / "c" / "file", b"1")
            disk.moments.clear()
            disk.acknowledge("written")

        def has_it(folder: Path, promised: tuple[Any, ...]) -> None:
            assert (folder / "a" / "b" / "c" / "file").read_bytes() == b"1"

        survives(disk, tmp_path, has_it)


def test_a_secret_is_lost_whose_first_keeper_was_killed_before_its_name_was_synced(
    tmp_path: Path,
) -> None:
    """The next one finds it there, and says that it is kept."""
    first, second = access.of("holdfast", "first"), access.of("holdfast", "second")
    for disk in restarts(tmp_path, lambda disk: access.keep(disk.folder / "secret", first)):
        with disk:
            access.keep(disk.folder / "secret", second)
            disk.moments.clear()
            disk.acknowledge("kept")

        def has_one(folder: Path, promised: tuple[Any, ...]) -> None:
            assert access.read(folder / "secret").secret in ("first", "second")

        survives(disk, tmp_path, has_one)
