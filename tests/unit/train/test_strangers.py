"""Who comes to a worker's port and is not of its job: it gets nothing, and costs nothing."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from holdfast.system import job_credentials
from holdfast.system.job_credentials import Credentials
from holdfast.train.members import listener as listener_module
from holdfast.train.members.greeting import Epoch, Hello, probe
from holdfast.train.members.tls import TlsSocket
from holdfast.train.modes.asynchronous.messages import Peers
from holdfast.train.modes.asynchronous.server import RequestServer, nothing
from holdfast.wire.errors import PeerLost
from tests.credentials import ANOTHER, credentials
from tests.unit.train.meshes import JOB, LIMIT_S, Listeners, Thread

Port = Callable[[], tuple[str, int]]
HELLO = Hello("probe", JOB, 1, 0, Epoch(9, 0))


@contextmanager
def a_listener() -> Iterator[tuple[int, Callable[[], bool]]]:
    with Listeners(1) as listeners:
        here = {0: Epoch(0, 0)}
        address = listeners.addresses
        yield (
            listeners.listeners[0].address[1],
            lambda: probe({0: HELLO}, address, lambda: True, credentials(JOB)) == here,
        )


@contextmanager
def a_server() -> Iterator[tuple[int, Callable[[], bool]]]:
    failures: list[BaseException] = []
    answers = {"hello": lambda _request: nothing(here=True)}
    server = RequestServer(credentials(JOB), 0, ("127.0.0.1", 0), answers, failures.append)
    try:
        address = f"127.0.0.1:{server.port}"
        yield (
            server.port,
            lambda: bool(Peers(credentials(JOB), 1).call(address, {"ask": "hello"}).notes["here"]),
        )
    finally:
        server.close()
    assert not failures, "a stranger is no bug"


PORTS = pytest.mark.parametrize("port_of", [a_listener, a_server])


def gone(line: socket.socket) -> bool:
    """Whether the other side has hung up; waits for it."""
    line.settimeout(LIMIT_S)
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        while line.recv(4096):
            pass
    return True


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def the_peak_of(work: Callable[[], object]) -> int:
    """By how much this process grew while it was done, at most."""
    before, peak, ended = resident_bytes(), 0, threading.Event()

    def look() -> None:
        nonlocal peak
        while not ended.wait(0.001):
            peak = max(peak, resident_bytes())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        work()
    finally:
        ended.set()
        thread.join()
    return peak - before


@PORTS
@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n" * 20,
        random.Random(3).randbytes(4096),
        struct.pack("<4sHQ", b"HFa\n", 1, 4 * 1024**3) + b"x" * 64,
        struct.pack("<4sHI", b"HFm\n", 1, 1024 * 1024) + b"x" * 64,
        b"\x16\x03\x01\x02\x00" + b"\x01" * 600,
    ],
    ids=[
        "http",
        "random",
        "a message of 4 GiB",
        "a hello without a proof",
        "no TLS, though it seems",
    ],
)
def test_a_stranger_is_cut_off_before_anything_is_made_of_what_it_says(
    port_of: Callable[[], contextlib.AbstractContextManager[tuple[int, Callable[[], bool]]]],
    said: bytes,
) -> None:
    with port_of() as (port, serves):

        def say() -> None:
            with socket.create_connection(("127.0.0.1", port)) as line:
                with contextlib.suppress(ConnectionError):
                    line.sendall(said)
                assert gone(line)

        grown = the_peak_of(say)
        assert grown < 64 * 1024**2, f"it grew by {grown} bytes"
        assert serves()


@PORTS
@pytest.mark.parametrize("size", [0, 1, 20, 53, 54, 60])
def test_a_handshake_that_breaks_off_harms_nobody(
    port_of: Callable[[], contextlib.AbstractContextManager[tuple[int, Callable[[], bool]]]],
    size: int,
) -> None:
    with port_of() as (port, serves):
        with recorder(port) as (front, said):
            call(front, port_of)
        with socket.create_connection(("127.0.0.1", port)) as line:
            line.sendall(bytes(said)[:size])
        assert serves()


@PORTS
def test_a_replayed_conversation_is_refused(
    port_of: Callable[[], contextlib.AbstractContextManager[tuple[int, Callable[[], bool]]]],
) -> None:
    with port_of() as (port, serves):
        with recorder(port) as (front, said):
            assert call(front, port_of), "the one that is recorded is good"
        with socket.create_connection(("127.0.0.1", port)) as line:
            line.sendall(bytes(said))
            heard = bytearray()
            line.settimeout(LIMIT_S)
            with contextlib.suppress(ConnectionResetError):
                while data := line.recv(4096):
                    heard += data
        assert len(heard) <= 76, "an answer to the opening, and nothing after it"
        assert serves()


@PORTS
@pytest.mark.parametrize(
    "shown",
    [credentials(JOB, secret=ANOTHER), credentials("another job")],
    ids=["another secret", "another job with the same secret"],
)
def test_a_worker_of_another_job_is_refused(
    port_of: Callable[[], contextlib.AbstractContextManager[tuple[int, Callable[[], bool]]]],
    shown: Credentials,
) -> None:
    with port_of() as (port, serves):
        assert not call(port, port_of, shown)
        assert serves()


def test_strangers_that_say_nothing_do_not_keep_members_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener_module, "CALLERS_MAX", 8)
    with a_listener() as (port, serves), contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert serves()


@PORTS
def test_a_stranger_that_drips_is_cut_off_when_its_time_is_over(
    port_of: Callable[[], contextlib.AbstractContextManager[tuple[int, Callable[[], bool]]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for where in ("members.listener", "modes.asynchronous.messages"):
        monkeypatch.setattr(f"holdfast.train.{where}.HELLO_S", 0.5)
    with port_of() as (port, serves), socket.create_connection(("127.0.0.1", port)) as line:
        until_s = time.monotonic() + LIMIT_S
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < until_s:
                line.sendall(b"H")
                time.sleep(0.1)  # pause: it dribbles
        assert time.monotonic() < until_s, "it is still let talk"
        assert serves()


# --- between machines -----------------------------------------------------------------------------


@pytest.fixture
def between_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the other end of each connection were on another machine."""
    monkeypatch.setattr(job_credentials, "within_machine", lambda _sock: False)


@pytest.mark.usefixtures("between_machines")
def test_members_on_different_machines_meet_over_tls(tmp_path: Path) -> None:
    with Listeners(3, credentials(JOB, folder=tmp_path)) as listeners:
        threads = [Thread(partial(listeners.meet, w, [0, 1, 2], step=w)) for w in range(3)]
        met = [thread.result()[0] for thread in threads]
        for mesh in met:
            assert all(isinstance(wire.sock, TlsSocket) for wire in mesh._wires.values())
        data = random.Random(5).randbytes(20_000_000)
        buffers = [bytearray(len(data)) for _ in range(2)]
        talks = [
            Thread(lambda: met[0].send(1, data)),
            Thread(lambda: met[1].send(0, data)),
            Thread(lambda: met[0].recv_into(1, buffers[0])),
            Thread(lambda: met[1].recv_into(0, buffers[1])),
        ]
        for talk in talks:  # both ways at the same time, two threads on each end
            talk.result()
        assert all(buffer == data for buffer in buffers)


@pytest.mark.usefixtures("between_machines")
def test_servers_on_different_machines_are_asked_over_tls(tmp_path: Path) -> None:
    shown = credentials(JOB, folder=tmp_path)
    answers = {"hello": lambda _request: nothing(here=True)}
    server = RequestServer(shown, 0, ("127.0.0.1", 0), answers, lambda _error: None)
    try:
        with recorder(server.port) as (front, said):
            found = Peers(shown, 1).call(f"127.0.0.1:{front}", {"ask": "hello"})
        assert found.notes["here"]
        assert said[0] == 0x16 and b"hello" not in said and b"HFk" not in said
    finally:
        server.close()


@pytest.mark.usefixtures("between_machines")
def test_who_comes_from_another_machine_without_tls_is_refused(tmp_path: Path) -> None:
    shown = credentials(JOB, folder=tmp_path)
    plain = Credentials(shown.job, shown.secret, shown.folder, trusted=True)
    with Listeners(1, shown) as listeners:
        assert probe({0: HELLO}, listeners.addresses, lambda: True, plain) == {}
        assert probe({0: HELLO}, listeners.addresses, lambda: True, shown) == {0: Epoch(0, 0)}
    server = RequestServer(shown, 0, ("127.0.0.1", 0), {}, lambda _error: None)
    try:
        with pytest.raises(PeerLost):
            Peers(plain, 1).call(f"127.0.0.1:{server.port}", {"ask": "hello"})
    finally:
        server.close()


@pytest.mark.usefixtures("between_machines")
def test_in_a_network_that_is_trusted_there_is_no_tls_and_still_a_proof(tmp_path: Path) -> None:
    shown = Credentials(JOB, credentials().secret, None, trusted=True)
    with Listeners(1, shown) as listeners:
        assert probe({0: HELLO}, listeners.addresses, lambda: True, shown) == {0: Epoch(0, 0)}
        wrong = Credentials(JOB, bytes(32), None, trusted=True)
        assert probe({0: HELLO}, listeners.addresses, lambda: True, wrong) == {}


@pytest.mark.usefixtures("between_machines")
def test_the_certificate_of_another_job_is_refused_both_ways(tmp_path: Path) -> None:
    ours = credentials(JOB, folder=tmp_path / "ours")
    theirs = credentials(JOB, secret=ANOTHER, folder=tmp_path / "theirs")
    with Listeners(1, ours) as listeners:
        assert probe({0: HELLO}, listeners.addresses, lambda: True, theirs) == {}
        lenient = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        lenient.check_hostname, lenient.verify_mode = False, ssl.CERT_NONE
        host, port = listeners.listeners[0].address
        with (
            socket.create_connection((host, port)) as sock,
            lenient.wrap_socket(sock) as line,
            pytest.raises((ssl.SSLError, OSError)),
        ):
            line.settimeout(LIMIT_S)
            if not line.recv(1):  # without a certificate of the job
                raise ConnectionResetError
        assert probe({0: HELLO}, listeners.addresses, lambda: True, ours) == {0: Epoch(0, 0)}


# --- helpers ------------------------------------------------------------------------------------


def call(port: int, port_of: object, shown: Credentials | None = None) -> bool:
    """Whether one with these credentials is answered."""
    shown = shown or credentials(JOB)
    if port_of is a_listener:
        return bool(probe({0: HELLO}, {0: f"127.0.0.1:{port}"}, lambda: True, shown))
    try:
        Peers(shown, 1).call(f"127.0.0.1:{port}", {"ask": "hello"})
    except PeerLost:
        return False
    return True


@contextmanager
def recorder(port: int) -> Iterator[tuple[int, bytearray]]:
    """A front of that port, and what a caller has said to it."""
    said = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pass_on() -> None:
            caller, _ = listener.accept()
            with caller, socket.create_connection(("127.0.0.1", port)) as called:
                back = threading.Thread(target=pump, args=(called, caller, None))
                back.start()
                pump(caller, called, said)
                back.join()

        thread = threading.Thread(target=pass_on)
        thread.start()
        yield listener.getsockname()[1], said
    thread.join(LIMIT_S)


def pump(source: socket.socket, sink: socket.socket, kept: bytearray | None) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            if kept is not None:
                kept += data
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
