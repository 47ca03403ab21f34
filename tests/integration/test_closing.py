"""The embedded server lets in who can read its folder, also one that was open before."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo import exceptions as kz
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE

from holdfast.coordination import Config, access, connect, launch
from holdfast.coordination.embedded.salvage import salvage
from tests.servers import EmbeddedServer
from tests.servers.process import four_letter_word
from tests.waiting import eventually

STRANGER = 65_534
NEEDS_ROOT = pytest.mark.skipif(
    os.getuid() != 0, reason="only root can become another user: run this test as root"
)


@contextmanager
def client(port: int, secret: Path | None = None) -> Iterator[KazooClient]:
    shown = [] if secret is None else [("digest", access.read(secret).credential)]
    made = KazooClient(f"127.0.0.1:{port}", auth_data=shown)
    made.start(timeout=30)
    try:
        yield made
    finally:
        made.stop()
        made.close()


def closed(folder: Path, **more: Any) -> EmbeddedServer:
    return EmbeddedServer(folder, is_open=False, **more)


def test_a_fresh_server_lets_nobody_make_or_read_anything_at_its_root(tmp_path: Path) -> None:
    with closed(tmp_path) as server, client(server.port) as stranger:
        attacks: list[Callable[[], object]] = [
            lambda: stranger.create("/evil", b"", OPEN_ACL_UNSAFE),
            lambda: stranger.get_children("/"),
            lambda: stranger.create("/zookeeper/evil", b"", OPEN_ACL_UNSAFE),
            lambda: stranger.create("/zookeeper/quota/evil", b"", OPEN_ACL_UNSAFE),
            lambda: stranger.get("/zookeeper/config"),
            lambda: stranger.set_acls("/", OPEN_ACL_UNSAFE),
        ]
        for attack in attacks:
            with pytest.raises(kz.NoAuthError):
                attack()
        with client(server.port, server.data / access.NAME) as owner:
            owner.create("/ours")
            assert sorted(owner.get_children("/")) == ["ours", "zookeeper"]


def test_a_folder_of_an_older_version_is_closed_when_its_server_starts(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path).start()
    with client(server.port) as anybody:
        for path in ("/holdfast/jobs/j/state", "/holdfast/models/m", "/mine"):
            anybody.ensure_path(path)
        anybody.add_auth("digest", "alice:x")
        anybody.create("/alice", b"", anybody_only := _list_of("alice", "x"))
    server.kill()
    again = closed(tmp_path, port=server.port).start()
    assert launch.closed(again.data) == 7
    secret = again.data / access.NAME
    ours = access.read(secret)
    with client(again.port) as stranger, pytest.raises(kz.NoAuthError):
        stranger.get("/holdfast/jobs/j/state")
    with client(again.port, secret) as owner:
        for path in ("/", "/holdfast", "/holdfast/jobs/j/state", "/holdfast/models/m", "/mine"):
            found = [(one.perms, one.id.scheme, one.id.id) for one in owner.get_acls(path)[0]]
            assert found == [tuple(entry) for entry in ours.acl(path)]
    # What somebody closed himself stays his.
    with client(again.port) as other:
        other.add_auth("digest", "alice:x")
        assert other.get_acls("/alice")[0] == anybody_only
    again.kill()
    third = closed(tmp_path, port=server.port).start()
    assert launch.closed(third.data) == 0, "once"
    assert access.read(secret) == ours
    third.kill()


def _list_of(user: str, phrase: str) -> list[object]:
    from kazoo.security import make_digest_acl

    return [make_digest_acl(user, phrase, all=True)]


def test_access_lists_survive_kills_and_snapshots(tmp_path: Path) -> None:
    options = ["--snapshot-every", "20"]
    server = EmbeddedServer(tmp_path, options=options, is_open=False).start()
    secret = server.data / access.NAME
    with client(server.port, secret) as owner:
        for number in range(100):
            owner.create(f"/n{number}", b"", _list_of("alice", "x"))
        eventually(lambda: list(server.data.glob("snapshot-*")), "a snapshot is there")
    for _ in range(2):
        server.kill()
        server = EmbeddedServer(tmp_path, server.port, options, is_open=False).start()
        with client(server.port) as stranger:
            for path in ("/", "/n0", "/n99"):
                with pytest.raises(kz.NoAuthError):
                    stranger.get_children(path)
    server.kill()


def test_a_salvaged_folder_keeps_its_secret_and_one_without_it_gets_another(tmp_path: Path) -> None:
    with connect(f"embedded:{tmp_path}/coord?linger_s=1") as session:
        Config(session, "/holdfast/settings").put({"n": 1})
        os.kill(launch.holder(tmp_path / "coord") or 0, signal.SIGKILL)
        session.close()
    salvage(tmp_path / "coord", tmp_path / "saved")
    names = [tmp_path / name / access.NAME for name in ("coord", "saved")]
    assert access.read(names[0]) == access.read(names[1])
    # A secret that is lost: whoever has the folder has the plane.
    names[1].unlink()
    with connect(f"embedded:{tmp_path}/saved?linger_s=1") as session:
        assert Config(session, "/holdfast/settings").get().value == {"n": 1}


def test_a_stranger_is_told_how_the_server_is_and_not_who_uses_it(tmp_path: Path) -> None:
    with closed(tmp_path) as server:
        for word in ("ruok", "isro", "srvr", "mntr"):
            answer = four_letter_word(server.port, word)
            assert answer and "whitelist" not in answer
            assert str(tmp_path) not in answer
        for word in ("stat", "cons", "envi", "conf", "dump", "wchs"):
            assert "not in the whitelist" in four_letter_word(server.port, word)


IMPOSTOR = """
import os, socket, sys
listener = socket.socket(fileno=int(sys.argv[1]))
os.setgroups([]); os.setgid({user}); os.setuid({user})
# The system says of a socket whose it is when it is made.
port = listener.getsockname()[1]
listener.close()
listener = socket.create_server(("127.0.0.1", port))
print("ready", flush=True)
while True:
    link, _ = listener.accept()
    link.settimeout(60)
    try:
        data = link.recv(4096)
    except OSError:
        data = b""
    print(len(data), flush=True)
    link.close()
"""


@NEEDS_ROOT
def test_whoever_takes_the_port_of_a_dead_server_is_not_shown_the_secret(tmp_path: Path) -> None:
    address = f"embedded:{tmp_path}/coord?linger_s=1"
    with connect(address) as session:
        port = int((launch.find(tmp_path / "coord") or "").rpartition(":")[2])
        pid = launch.holder(tmp_path / "coord") or 0
        # Nobody starts it again: it stays the stranger's port.
        launch.forbid(tmp_path / "coord", "allow it", 5.0)
        os.kill(pid, signal.SIGKILL)
        with _listening(port) as found:
            code = IMPOSTOR.format(user=STRANGER)
            impostor = subprocess.Popen(
                [sys.executable, "-c", code, str(found.fileno())],
                pass_fds=[found.fileno()],
                stdout=subprocess.PIPE,
                text=True,
            )
            found.close()
            assert impostor.stdout is not None
            try:
                assert impostor.stdout.readline() == "ready\n"
                heard = [impostor.stdout.readline() for _ in range(3)]
            finally:
                impostor.kill()
                impostor.wait()
                impostor.stdout.close()
        assert heard == ["0\n"] * 3, "it connects, looks whose it is, and says nothing"
        assert not session.connected


@contextmanager
def _listening(port: int) -> Iterator[socket.socket]:
    """That port of the server that has just died."""

    def bound() -> socket.socket | None:
        try:
            return socket.create_server(("127.0.0.1", port))
        except OSError:
            return None

    with eventually(bound, "the port is free") as listener:
        yield listener
