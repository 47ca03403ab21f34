"""A cluster that an older version made, open to everybody: it still opens, and `up` closes it."""

from __future__ import annotations

import stat
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo import exceptions as kz
from kazoo.client import KazooClient

from holdfast.cluster import create, opened
from holdfast.launch.ending import down
from holdfast.system.certificates import Authority
from tests.contract.planes import Plane
from tests.integration.clusters import Home, holdfast
from tests.servers import EmbeddedServer, ZooKeeperEnsemble

OLD = ("/holdfast/leader/term", "/holdfast/queues/q", "/holdfast/models/m/versions")


def loosened(folder: Path) -> int:
    """Let everybody read it, as the files of an older version were."""
    paths = [folder, *folder.rglob("*")]
    for path in paths:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return len(paths)


def make_old(port: int, root: str) -> None:
    """What an older version leaves in a plane."""
    client = KazooClient(f"127.0.0.1:{port}")
    client.start(timeout=60)
    for path in OLD:
        client.ensure_path(root + path)
    client.stop()
    client.close()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "cluster"
    yield made
    if (made / "cluster.json").exists():
        down(opened(made), force=True)


def is_closed(port: int, path: str) -> bool:
    client = KazooClient(f"127.0.0.1:{port}")
    client.start(timeout=60)
    try:
        client.get(path)
    except kz.NoAuthError:
        return True
    finally:
        client.stop()
        client.close()
    return False


def test_an_embedded_one_is_closed_by_up_once_and_goes_on(folder: Path, tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / "old").start()
    make_old(server.port, "")
    server.kill()
    cluster = create(folder, coordination="embedded:coordination?timeout_s=6&tick_ms=500")
    Authority.make(cluster.authority_folder, "local")
    (tmp_path / "old" / "data").rename(folder / "coordination")
    (folder / "coordination" / "server.json").unlink(missing_ok=True)
    count = loosened(folder)
    first = holdfast("up", "--cluster", str(folder), "--agents", "0")
    assert first.returncode == 0, first.stderr
    assert "closed: 8 nodes of the coordination plane were open" in _flat(first.stderr)
    assert f"could read {count} files and folders" in _flat(first.stderr)
    assert not any(mode & 0o077 for mode in modes(folder))
    home = _home(folder)
    port = int(str(home.process("server").facts["address"]).rpartition(":")[2])
    assert all(is_closed(port, path) for path in ("/", "/holdfast", *OLD))
    again = holdfast("up", "--cluster", str(folder), "--agents", "0")
    assert "closed" not in again.stderr
    with home.control() as control:
        assert control.jobs() == {}


@pytest.mark.engines
def test_one_on_an_ensemble_is_closed_by_up_and_nothing_beside_it(
    folder: Path, ensemble: ZooKeeperEnsemble
) -> None:
    port = ensemble.whole().servers[0].port
    root = f"/old-{uuid.uuid4().hex[:8]}"
    make_old(port, root)
    make_old(port, f"{root}-beside")
    address = f"zk://{ensemble.hosts}{root}?timeout_s=20"
    cluster = create(folder, coordination=address)
    Authority.make(cluster.authority_folder, "local")
    first = holdfast("up", "--cluster", str(folder), "--agents", "0")
    assert first.returncode == 0, first.stderr
    # The root, and all that an older version had made there; coordinators make theirs meanwhile.
    assert "nodes of the coordination plane were open" in _flat(first.stderr)
    assert all(is_closed(port, f"{root}{path}") for path in ("", "/holdfast", *OLD))
    assert not is_closed(port, f"{root}-beside/holdfast")
    assert stat.S_IMODE((folder / "access").stat().st_mode) == 0o600
    again = holdfast("up", "--cluster", str(folder), "--agents", "0")
    assert "closed" not in again.stderr


def test_no_node_of_a_running_cluster_is_open_to_everybody(plane: Plane, tmp_path: Path) -> None:
    """The other plane too: on the embedded one strangers are tried in `test_strangers`."""
    where = "embedded:coordination?timeout_s=6&tick_ms=500"
    home = Home(tmp_path / "cluster", where if plane.kind == "embedded" else plane.address(20.0))
    try:
        home.up()
        home.submit()
        home.started()
        with home.cluster.session() as session:
            client, found = vars(session)["_client"], [session.chroot or "/"]
            for path in found:
                try:
                    lists = client.get_acls(path)[0]
                    children = client.get_children(path)
                except kz.NoNodeError:
                    continue  # it went while we looked
                schemes = {entry.id.scheme for entry in lists}
                assert schemes == {"digest"}, f"{path} is open to {schemes}"
                found += [f"{path.rstrip('/')}/{name}" for name in children]
            assert len(found) > 20
        home.release()
        assert home.ended().status.phase.value == "succeeded"
    finally:
        home.end()


def modes(folder: Path) -> Iterator[int]:
    for path in (folder, *folder.rglob("*")):
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            continue
        if not stat.S_ISSOCK(mode) and not stat.S_ISLNK(mode):
            yield mode


def _flat(text: str) -> str:
    return " ".join(text.split())


def _home(folder: Path) -> Home:
    made = object.__new__(Home)
    made.cluster = opened(folder)
    return made
