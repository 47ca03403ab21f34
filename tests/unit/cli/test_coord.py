"""`holdfast coord` against a running server and its folder."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.coordination import Session, connect, inspection
from holdfast.coordination.inspection import SHOWN_DATA_BYTES_MAX
from holdfast.wire.errors import TerminalError
from tests.servers import EmbeddedServer
from tests.unit.cli.running import environment, holdfast, told
from tests.waiting import eventually


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def session(server: EmbeddedServer) -> Iterator[Session]:
    with connect(f"zk://{server.hosts}") as opened:
        yield opened


def test_status_tells_the_same_by_host_by_url_and_by_folder(server: EmbeddedServer) -> None:
    for address in (server.hosts, f"zk://{server.hosts}", f"embedded:{server.data}"):
        (one,) = told(holdfast("coord", "status", address, "--json"))["servers"]
        assert one["answers"]
        assert one["address"] == server.hosts
        assert one["mode"] == "standalone"
        assert one["data_folder"] == str(server.data)
        assert one["nodes"] >= 1
        assert int(one["zxid"], 16) >= 0


def test_status_is_readable_and_takes_its_address_from_the_environment(
    server: EmbeddedServer,
) -> None:
    shown = holdfast("coord", "status", HOLDFAST_COORD=f"zk://{server.hosts}").stdout
    for text in (server.hosts, "version", "zxid", "connections", str(server.data)):
        assert text in shown


def test_status_of_several_shows_who_does_not_answer(server: EmbeddedServer) -> None:
    done = holdfast("coord", "status", f"zk://{server.hosts},127.0.0.1:1", "--json")
    assert done.returncode == 0
    assert [one["answers"] for one in told(done)["servers"]] == [True, False]


def test_ls_and_tree_show_what_is_there(server: EmbeddedServer, session: Session) -> None:
    session.nodes.create("/shelf/book", b"moby dick")
    session.nodes.create("/shelf/book/page", b"\x00\xff")
    session.nodes.create("/shelf/lamp", b"lit", lease=session.lease())
    listed = told(holdfast("coord", "ls", "/shelf", "-a", server.hosts, "--json"))
    assert [node["path"] for node in listed["nodes"]] == ["/shelf/book", "/shelf/lamp"]
    assert [node["ephemeral"] for node in listed["nodes"]] == [False, True]
    assert listed["nodes"][0]["data"] == "moby dick"
    assert listed["complete"]
    below = told(holdfast("coord", "tree", "/shelf/", "-a", server.hosts, "--json"))
    paths = [node["path"] for node in below["nodes"]]
    assert paths == ["/shelf", "/shelf/book", "/shelf/book/page", "/shelf/lamp"]
    shown = holdfast("coord", "tree", "/", "-a", server.hosts).stdout
    assert "moby dick" in shown
    assert "ephemeral" in shown


def test_a_chroot_is_the_root_of_what_is_shown(server: EmbeddedServer, session: Session) -> None:
    session.nodes.create("/house/room", b"")
    address = f"zk://{server.hosts}/house"
    listed = told(holdfast("coord", "ls", "--address", address, "--json"))
    assert [node["path"] for node in listed["nodes"]] == ["/room"]


def test_a_missing_node_is_an_error_that_names_it(server: EmbeddedServer) -> None:
    done = holdfast("coord", "ls", "/nowhere", "-a", server.hosts)
    assert done.returncode == 1
    assert "/nowhere" in done.stderr


def test_a_listing_is_bounded_and_says_that_it_was_cut(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        session.nodes.create(f"/wide/{number}", b"x" * 200)
    whole, cut = inspection.below(session, "/wide", depth=9)
    assert (len(whole), cut) == (7, False)
    assert len(whole[1].data) == SHOWN_DATA_BYTES_MAX + 1
    monkeypatch.setattr(inspection, "LISTED_NODES_MAX", 5)
    part, cut = inspection.below(session, "/wide", depth=9)
    assert (len(part), cut) == (1, True)
    with pytest.raises(TerminalError):
        inspection.below(session, "/wide/none", depth=1)


def test_looking_at_a_folder_without_a_server_starts_none(tmp_path: Path) -> None:
    for words in (["status", f"embedded:{tmp_path}"], ["ls", "/", "-a", f"embedded:{tmp_path}"]):
        done = holdfast("coord", *words)
        assert done.returncode == 75
        assert f"holdfast coord serve --data {tmp_path}" in done.stderr
    assert list(tmp_path.iterdir()) == []


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    eventually(lambda: path.exists() or process.poll() is not None, "the server has started")
    assert process.poll() is None, "the server ended while it started"


def test_serve_tells_the_next_command_and_ends_with_zero_when_told(tmp_path: Path) -> None:
    data = tmp_path / "coord"
    command = [sys.executable, "-m", "holdfast", "coord", "serve", "--data", str(data)]
    serving = subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True, env=environment()
    )
    wait_for(data / "server.json", serving)
    assert holdfast("coord", "status", f"embedded:{data}").returncode == 0
    second = holdfast("coord", "serve", "--data", str(data), "--listen", "127.0.0.1:0")
    assert second.returncode == 11
    assert str(serving.pid) in second.stderr
    serving.send_signal(signal.SIGTERM)
    _, said = serving.communicate(timeout=60)
    assert serving.returncode == 0
    assert f"holdfast coord status embedded:{data}" in said
    assert "listening" in said


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder with some history, and no server over it."""
    running = EmbeddedServer(tmp_path / "server")
    with running, connect(f"zk://{running.hosts}") as session:
        for number in range(20):
            session.nodes.create(f"/shelf/{number}", b"book")
    return running.data


def test_check_finds_a_good_folder_good(folder: Path) -> None:
    done = holdfast("coord", "check", str(folder), "--json")
    report = told(done)
    assert done.returncode == 0
    assert report["good"]
    assert report["last_zxid"] >= 20
    assert "all good" in holdfast("coord", "check", str(folder)).stdout


def test_check_names_a_damaged_file_and_salvage_saves_what_came_before(folder: Path) -> None:
    segment = next(folder.glob("log-*"))
    data = bytearray(segment.read_bytes())
    data[len(bytes(data).rstrip(b"\0")) // 2] ^= 0x40
    segment.write_bytes(data)

    checked = holdfast("coord", "check", str(folder))
    assert checked.returncode == 1
    assert segment.name in checked.stdout
    assert f"holdfast coord salvage {folder}" in checked.stdout
    refused = holdfast("coord", "serve", "--data", str(folder), "--listen", "127.0.0.1:0")
    assert refused.returncode == 1
    assert str(segment) in refused.stderr

    target = folder.parent / "saved"
    saved = told(holdfast("coord", "salvage", str(folder), str(target), "--json"))
    assert saved["loses"]
    assert 0 < saved["kept_zxid"] < saved["lost_last"]
    assert told(holdfast("coord", "check", str(target), "--json"))["good"]


def test_salvage_of_a_good_folder_loses_nothing_and_says_what_is_next(folder: Path) -> None:
    target = folder.parent / "saved"
    done = holdfast("coord", "salvage", str(folder), str(target))
    assert done.returncode == 0
    assert "nothing" in done.stdout
    assert f"holdfast coord serve --data {target}" in done.stdout


def test_serve_logs_at_the_level_that_was_asked_for(tmp_path: Path) -> None:
    data = str(tmp_path / "coord")
    words = ["coord", "serve", "--data", data, "--listen", "127.0.0.1:0", "--linger", "0.1"]
    assert "listening" in holdfast(*words).stderr
    assert "listening" not in holdfast("--log-level", "error", *words).stderr


def test_a_folder_that_is_none_is_wrong_usage(tmp_path: Path) -> None:
    assert holdfast("coord", "check", str(tmp_path / "none")).returncode == 2
