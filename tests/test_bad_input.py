"""Wrong, rude and broken clients: an answer or a closed socket, never a crash, never a leak.

What a real ZooKeeper does too is asked of both servers by the same tests.
"""

from __future__ import annotations

import re
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from holdfast.coordination.embedded import protocol
from holdfast.coordination.embedded.connection import FRAME_BYTES_MAX
from tests.conftest import require_service
from tests.proofs import wire
from tests.proofs.fuzz.guard import Guard
from tests.servers import EmbeddedServer, ServerProcess, ZooKeeperServer, zookeeper_missing
from tests.servers.process import four_letter_word

IDLE_WANTED = 10_000
DEADLINE_S = 120.0


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("embedded")) as started:
        yield started


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    require_service(zookeeper_missing())
    with ZooKeeperServer(tmp_path_factory.mktemp("real")) as started:
        yield started


@pytest.fixture(params=["embedded", "real"])
def server(request: pytest.FixtureRequest) -> ServerProcess:
    chosen: ServerProcess = request.getfixturevalue(request.param)
    return chosen


@pytest.fixture
def guarded(embedded: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """Our server; afterwards it must be as well as before, with nothing left open."""
    guard = Guard(embedded)
    yield embedded
    guard.check()
    guard.leave()


def introduced(server: ServerProcess, timeout_ms: int = 30_000) -> wire.Link:
    link = wire.Link(server.port)
    welcome = link.connect(timeout_ms=timeout_ms)
    assert welcome is not None
    assert welcome.session
    return link


@pytest.mark.parametrize("length", [0x100000, 0x7FFFFFFF, -1, -0x80000000])
def test_an_impossible_frame_length_closes_the_connection_without_a_reply(
    server: ServerProcess, length: int
) -> None:
    with introduced(server) as link:
        link.send(wire.integer(length) + b"x" * 100)
        assert link.receive() is None


@pytest.mark.parametrize("length", [0x7FFFFFFF, -1])
def test_an_impossible_first_frame_closes_the_connection_without_a_reply(
    server: ServerProcess, length: int
) -> None:
    with wire.Link(server.port) as link:
        link.send(wire.integer(length) + b"x" * 100)
        assert link.receive() is None


def test_the_largest_frame_is_served(server: ServerProcess) -> None:
    with introduced(server) as link:
        link.call(1, protocol.CREATE, wire.create_body("/largest"))
        body = wire.set_data_body("/largest", b"")
        data = bytes(FRAME_BYTES_MAX - 1 - 8 - len(body))
        reply = link.call(2, protocol.SET_DATA, wire.set_data_body("/largest", data))
        assert reply is not None
        assert reply.error == protocol.OK


def test_a_wrong_password_is_refused_and_the_session_lives_on(server: ServerProcess) -> None:
    with introduced(server) as link:
        assert link.welcome is not None
        session, password = link.welcome.session, link.welcome.password
    with wire.Link(server.port) as thief:
        refusal = thief.connect(session=session, password=bytes(16))
        assert refusal is not None
        assert (refusal.timeout_ms, refusal.session, refusal.password) == (0, 0, bytes(16))
        assert thief.receive() is None
    with wire.Link(server.port) as owner:
        welcome = owner.connect(session=session, password=password)
        assert welcome is not None
        assert welcome.session == session
        owner.call(1, protocol.CLOSE_SESSION)


def test_a_session_that_never_was_is_refused_and_not_replaced(server: ServerProcess) -> None:
    with wire.Link(server.port) as link:
        refusal = link.connect(session=0x1234567, password=b"p" * 16)
        assert refusal is not None
        assert (refusal.timeout_ms, refusal.session) == (0, 0)
        assert link.receive() is None


@pytest.mark.parametrize("opcode", [999, -77, 10, 99])
def test_an_unknown_operation_is_answered_and_the_connection_stays(
    embedded: EmbeddedServer, opcode: int
) -> None:
    # ZooKeeper gives the same answer and then drops the connection, though not the session.
    with introduced(embedded) as link:
        reply = link.call(5, opcode, b"whatever")
        assert reply is not None
        assert (reply.error, reply.zxid) == (protocol.UNIMPLEMENTED, -1)
        after = link.call(6, protocol.EXISTS, wire.read_body("/"))
        assert after is not None
        assert after.error == protocol.OK


def test_a_client_that_has_seen_a_later_zxid_is_closed_without_a_reply(
    server: ServerProcess,
) -> None:
    with wire.Link(server.port) as link:
        assert link.connect(last_zxid=0x7FFFFFFF00000000) is None


WORDS: dict[str, tuple[str, ...]] = {
    "ruok": (r"imok",),
    "isro": (r"rw",),
    "srvr": (
        r"Zookeeper version: 3\.\d+\.\d+\S*, built on .+",
        r"Latency min/avg/max: \d+/\d+\.\d+/\d+",
        r"Received: \d+",
        r"Sent: \d+",
        r"Connections: \d+",
        r"Outstanding: \d+",
        r"Zxid: 0x[0-9a-f]+",
        r"Mode: standalone",
        r"Node count: \d+",
    ),
    "stat": (
        r"Zookeeper version: 3\.\d+\.\d+\S*, built on .+",
        r"Clients:",
        r" /\S+:\d+\[\d\]\(queued=\d+,recved=\d+,sent=\d+.*\)",
        r"Mode: standalone",
        r"Node count: \d+",
    ),
    "cons": (r" /\S+:\d+\[\d\]\(queued=\d+,recved=\d+,sent=\d+.*\)",),
    "mntr": (
        r"zk_version\t3\.\d+\.\d+\S*, built on .+",
        r"zk_server_state\tstandalone",
        r"zk_avg_latency\t[\d.]+",
        r"zk_packets_received\t\d+",
        r"zk_packets_sent\t\d+",
        r"zk_num_alive_connections\t\d+",
        r"zk_outstanding_requests\t\d+",
        r"zk_znode_count\t\d+",
        r"zk_watch_count\t\d+",
        r"zk_ephemerals_count\t\d+",
        r"zk_approximate_data_size\t\d+",
        r"zk_global_sessions\t\d+",
        r"zk_open_file_descriptor_count\t\d+",
        r"zk_max_file_descriptor_count\t\d+",
        r"zk_uptime\t\d+",
    ),
    "envi": (
        r"Environment:",
        r"zookeeper\.version=3\.\d+\.\d+\S*, built on .+",
        r"host\.name=\S+",
        r"os\.name=\S+",
        r"os\.arch=\S+",
        r"os\.version=\S+",
        r"user\.dir=.+",
    ),
    "conf": (
        r"dataDir=.+",
        r"tickTime=2000",
        r"maxClientCnxns=\d+",
        r"minSessionTimeout=4000",
        r"maxSessionTimeout=40000",
        r"serverId=0",
    ),
    "dump": (
        r"SessionTracker dump:",
        r"ephemeral nodes dump:",
        r"Sessions with Ephemerals \(1\):",
        r"0x[0-9a-f]+:",
        r"\t/of-a-session",
    ),
    "wchs": (r"1 connections watching 1 paths", r"Total watches:1"),
}


@pytest.mark.parametrize("word", WORDS)
def test_a_four_letter_word_is_answered_in_zookeepers_form(
    server: ServerProcess, word: str
) -> None:
    with introduced(server) as link:
        flag = protocol.FLAG_EPHEMERAL
        link.call(1, protocol.CREATE, wire.create_body("/of-a-session", b"", flag))
        link.call(2, protocol.GET_DATA, wire.read_body("/of-a-session", watch=True))
        answer = four_letter_word(server.port, word, timeout_s=60)
        for line in WORDS[word]:
            assert re.search(f"^{line}$", answer, re.MULTILINE), (line, answer)
        link.call(3, protocol.CLOSE_SESSION)


def test_a_half_open_connection_is_closed_after_the_handshakes_time(
    guarded: EmbeddedServer,
) -> None:
    starts = (b"", b"ru", wire.integer(45), wire.integer(45) + bytes(20))
    links = [wire.Link(guarded.port, answer_s=DEADLINE_S) for _ in starts]
    for link, start in zip(links, starts, strict=True):
        link.send(start)
    for link in links:
        assert link.receive() is None
        link.drop()


def test_connections_cut_inside_a_frame_leave_nothing_behind(guarded: EmbeddedServer) -> None:
    request = wire.request_frame(1, protocol.CREATE, wire.create_body("/cut", b"x" * 50))
    for length in range(1, len(request)):
        with introduced(guarded, timeout_ms=4_000) as link:
            link.send(request[:length])
    with introduced(guarded) as link:
        reply = link.call(1, protocol.EXISTS, wire.read_body("/cut"))
        assert reply is not None
        assert reply.error == protocol.NO_NODE


def test_a_client_that_never_reads_does_not_fill_the_servers_memory(
    guarded: EmbeddedServer,
) -> None:
    with introduced(guarded) as rude, introduced(guarded) as good:
        good.call(1, protocol.CREATE, wire.create_body("/big", bytes(900_000)))
        ask = wire.request_frame(1, protocol.GET_DATA, wire.read_body("/big"))
        rude.socket.setblocking(False)
        sent = 0
        # Ten gigabytes of answers if all were made; the server stops to read long before.
        for _ in range(12_000):
            try:
                sent += rude.socket.send(ask)
            except (BlockingIOError, ConnectionError):
                break
        for number in range(200):
            reply = good.call(number + 2, protocol.SET_DATA, wire.set_data_body("/big", b"small"))
            assert reply is not None
            assert reply.error == protocol.OK
        print(f"{sent // len(ask)} requests went out before the server stopped to read")


IDLE_CLIENTS = """
import resource, socket, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
port, count = int(sys.argv[1]), int(sys.argv[2])
hello, bye = bytes.fromhex(sys.argv[3]), bytes.fromhex(sys.argv[4])
links = []
for start in range(0, count, 100):
    group = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(100)]
    for link in group:
        link.sendall(hello)
    for link in group:
        assert len(link.recv(41, socket.MSG_WAITALL)) == 41
    links += group
print(len(links), flush=True)
sys.stdin.readline()
for link in links[: len(links) // 2]:
    link.sendall(bye)
for link in links[: len(links) // 2]:
    assert link.recv(20, socket.MSG_WAITALL)
print("half of them said goodbye", flush=True)
sys.stdin.readline()
"""


def test_ten_thousand_idle_sessions_are_held_and_leave_nothing_behind(
    guarded: EmbeddedServer,
) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    room = hard if hard != resource.RLIM_INFINITY else 2 * IDLE_WANTED
    count = min(IDLE_WANTED, room - 300) // 100 * 100
    hello = wire.frame(
        wire.integer(0)
        + wire.long(0)
        + wire.integer(40_000)
        + wire.long(0)
        + wire.buffer(bytes(16))
        + b"\x00"
    )
    bye = wire.request_frame(1, protocol.CLOSE_SESSION)
    child = subprocess.Popen(
        [sys.executable, "-c", IDLE_CLIENTS, str(guarded.port), str(count), hello.hex(), bye.hex()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == f"{count}\n"
        alive = re.search(
            r"zk_num_alive_connections\t(\d+)", four_letter_word(guarded.port, "mntr", 60)
        )
        assert alive is not None
        assert int(alive[1]) >= count
        print(f"{alive[1]} connections at once")
        with introduced(guarded) as link:  # and one more is served as ever
            reply = link.call(1, protocol.EXISTS, wire.read_body("/"))
            assert reply is not None
            assert reply.error == protocol.OK
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline().startswith("half")
    finally:
        child.kill()  # the other half goes without a word
        child.wait()


def test_a_connection_reset_at_once_is_forgotten(guarded: EmbeddedServer) -> None:
    reset = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
    for _ in range(300):
        with socket.create_connection(("127.0.0.1", guarded.port)) as link:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            link.sendall(b"\x00\x00\x00")
