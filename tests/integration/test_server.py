"""What the server promises as a process: start, stop, time, disk, TLS."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import SystemZookeeperError
from kazoo.protocol.states import KazooState

from holdfast.coordination.embedded import protocol
from holdfast.wire.errors import Occupied
from tests.conftest import require_service
from tests.proofs import wire
from tests.servers import EmbeddedServer, free_port
from tests.waiting import eventually

PATIENCE_S = 120.0


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path, options=["--tick-ms", "200"]) as running:
        yield running


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[KazooClient]:
    with_session = KazooClient(server.hosts, timeout=4.0)
    with_session.start(timeout=PATIENCE_S)
    yield with_session
    with_session.stop()
    with_session.close()


def test_a_polite_stop_ends_with_zero_and_leaves_no_address_behind(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path).start()
    facts = json.loads((server.data / "server.json").read_text())
    assert facts["address"] == server.hosts
    assert facts["pid"] == server.pid
    assert server.stop() == 0
    assert not (server.data / "server.json").exists()


def test_control_c_stops_it_cleanly(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path).start()
    assert server.process is not None
    os.kill(server.pid, signal.SIGINT)
    assert server.process.wait(timeout=PATIENCE_S) == 0
    assert "Traceback" not in server.output()


def test_a_second_server_on_the_same_folder_is_refused_and_names_the_first(
    server: EmbeddedServer,
) -> None:
    command = [*server.command()[:-1], "--listen", f"127.0.0.1:{free_port()}"]
    second = run(command)
    assert second.returncode == Occupied.exit_code
    assert str(server.pid) in second.stderr
    assert "fix:" in second.stderr


def test_a_taken_port_is_refused_with_the_way_out(server: EmbeddedServer, tmp_path: Path) -> None:
    other = EmbeddedServer(tmp_path / "other", server.port)
    second = run(other.command())
    assert second.returncode == Occupied.exit_code
    assert server.hosts in second.stderr
    assert "--listen" in second.stderr


def test_a_wrong_address_is_refused_as_usage(tmp_path: Path) -> None:
    command = [*EmbeddedServer(tmp_path).command(), "--listen", "nowhere"]
    refused = run(command)
    assert refused.returncode == 2
    assert "HOST:PORT" in refused.stderr


def test_it_ends_by_itself_when_nobody_is_connected_any_more(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path, options=["--linger", "1"]).start()
    client = KazooClient(server.hosts)
    client.start(timeout=PATIENCE_S)
    time.sleep(1.5)  # pause: longer than it lingers without a client
    assert server.ready(), "it must stay while a client is connected"
    client.stop()
    client.close()
    assert server.process is not None
    assert server.process.wait(timeout=PATIENCE_S) == 0


def test_answers_come_in_the_order_of_the_questions(client: KazooClient) -> None:
    client.create("/order", b"0")
    asked: list[tuple[Any, bytes | None]] = []
    for number in range(1, 300):
        asked.append((client.set_async("/order", str(number).encode()), None))
        asked.append((client.get_async("/order"), str(number).encode()))
    for answer, expected in asked:
        value = answer.get(timeout=PATIENCE_S)
        if expected is not None:
            assert value[0] == expected


def test_a_silent_session_ends_and_its_ephemerals_with_it(
    server: EmbeddedServer, client: KazooClient
) -> None:
    with wire.Link(server.port) as silent:
        silent.connect(timeout_ms=400)
        made = silent.call(1, protocol.CREATE, wire.create_body("/dies", flags=1))
        assert made is not None
        assert made.error == 0
        assert client.exists("/dies") is not None
        eventually(lambda: client.exists("/dies") is None, "it is gone")
        # The socket is closed too: the client is told by its end.
        assert silent.receive() is None


def test_a_paused_server_does_not_end_the_sessions_of_those_it_could_not_hear(
    server: EmbeddedServer, client: KazooClient
) -> None:
    client.create("/stays", b"", ephemeral=True)
    before = client.client_id[0]
    server.pause()
    time.sleep(6.0)  # pause: longer than the session's time-out of 4 s
    server.resume()
    eventually(lambda: client.state == KazooState.CONNECTED and client.connected, "it is back")
    assert client.retry(client.exists, "/stays") is not None
    assert client.client_id[0] == before


def test_sessions_and_ephemerals_survive_kill_nine(
    server: EmbeddedServer, client: KazooClient
) -> None:
    client.create("/kept", b"", ephemeral=True)
    before = client.client_id[0]
    server.kill()
    server.start()
    assert client.retry(client.exists, "/kept").owner_session_id == before
    assert client.client_id[0] == before


def test_empty_containers_and_outlived_nodes_are_removed(
    server: EmbeddedServer, client: KazooClient
) -> None:
    with wire.Link(server.port) as other:
        other.connect()
        other.call(1, protocol.CREATE_CONTAINER, wire.create_body("/box", flags=4))
        other.call(2, protocol.CREATE_TTL, wire.create_body("/short", flags=5, ttl_ms=100))
        other.call(3, protocol.CREATE_TTL, wire.create_body("/long", flags=5, ttl_ms=3_600_000))
    client.create("/box/thing", b"")
    client.delete("/box/thing")
    eventually(lambda: not client.exists("/box") and not client.exists("/short"), "both are gone")
    assert client.exists("/long") is not None


def test_a_full_disk_stops_writes_keeps_reads_and_is_over_when_there_is_room(
    server: EmbeddedServer, client: KazooClient
) -> None:
    client.create("/full", b"before")
    largest = max(path.stat().st_size for path in server.data.iterdir())
    _, hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (largest, hard))
    with pytest.raises(SystemZookeeperError):
        for _ in range(200):
            client.set("/full", b"x" * 100_000)
    assert client.get("/full")[0] in (b"before", b"x" * 100_000)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (hard, hard))
    stat = client.set("/full", b"after")
    server.kill()
    server.start()
    value, again = client.retry(client.get, "/full")
    assert (value, again.mzxid) == (b"after", stat.mzxid)


def test_a_session_that_was_closed_does_not_come_back(server: EmbeddedServer) -> None:
    client = KazooClient(server.hosts, timeout=1.0)
    client.start(timeout=PATIENCE_S)
    session, password = client.client_id
    client.stop()
    client.close()
    with wire.Link(server.port) as returned:
        answer = returned.connect(session=session, password=password)
        assert answer is not None
        assert answer.session == 0


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        require_service("openssl is not installed; as root: apt-get install -y openssl")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
    )
    return cert, key


class TlsServer(EmbeddedServer):
    """Ready when its port accepts: four-letter words come in the clear, and it speaks TLS."""

    def ready(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True


def test_tls_with_client_certificates_lets_in_only_those_who_show_one(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    cert, key = map(str, certificate)
    options = ["--tls-cert", cert, "--tls-key", key, "--tls-ca", cert]
    with TlsServer(tmp_path, options=options) as server:
        trusted = KazooClient(
            server.hosts, use_ssl=True, ca=cert, certfile=cert, keyfile=key, timeout=10
        )
        trusted.start(timeout=PATIENCE_S)
        trusted.create("/secret", b"s")
        assert trusted.get("/secret")[0] == b"s"
        trusted.stop()
        trusted.close()
        context = ssl.create_default_context(cafile=cert)
        raw = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            stranger = context.wrap_socket(raw, server_hostname="127.0.0.1")
            stranger.sendall(b"ruok")
            assert stranger.recv(4) == b"", "a stranger was answered"
            raise ConnectionError("closed without an answer")
        raw.close()
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as plain:
            plain.sendall(b"ruok, in the clear")
            assert b"imok" not in plain.recv(100)
        assert "Traceback" not in server.output()


def test_tls_files_that_do_not_fit_are_refused_with_the_reason(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    cert, _ = map(str, certificate)
    options = ["--tls-cert", cert, "--tls-key", cert]
    command = EmbeddedServer(tmp_path, options=options).command()
    refused = run(command)
    assert refused.returncode == 1
    assert "TLS" in refused.stderr
