"""The embedded server where other machines reach it: TLS, with certificates that its secret makes.

It listens on every address of this machine here, which is elsewhere than on loopback.
"""

from __future__ import annotations

import os
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from holdfast.coordination import Config, access, connect, launch, tls
from holdfast.coordination.address import TLS, EmbeddedAddress, parse
from holdfast.coordination.embedded.greeting import HANDSHAKES_MAX
from holdfast.wire.errors import Refused, Unavailable
from tests.servers.process import four_letter_word, free_port
from tests.waiting import eventually

WAIT_S = 30.0
ANYWHERE = "0.0.0.0"


class Plane:
    """A server over a folder, started by its first client as `holdfast up` has it started."""

    def __init__(self, folder: Path, more: str = "") -> None:
        self.port = free_port()
        self.address = f"embedded:{folder}?listen={ANYWHERE}:{self.port}&linger_s=300{more}"
        self.folder, self.file = folder, folder / access.NAME
        launch.ensure(self.parsed)

    @property
    def parsed(self) -> EmbeddedAddress:
        found = parse(self.address)
        assert isinstance(found, EmbeddedAddress)
        return found

    def elsewhere(self, file: Path | None = None, port: int | None = None) -> str:
        """As a machine that was let in has it."""
        place = f"zk://127.0.0.1:{port or self.port}?verify=secret"
        return f"{place}&secret_file={file or self.file}"

    def end(self) -> None:
        pid = launch.holder(self.folder)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    made = Plane(tmp_path / "plane")
    yield made
    made.end()


class Wire:
    """Whoever sits between a client and the server, and keeps what passes."""

    def __init__(self, port: int) -> None:
        self._to, self._ends, self.seen = port, ExitStack(), bytearray()
        self._listener = self._ends.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                for one, other in ((near, far), (far, near)):
                    self._ends.enter_context(one)
                    thread = threading.Thread(target=self._pass, args=(one, other))
                    self._threads.append(thread)
                    thread.start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65_536):
                self.seen += data
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(WAIT_S)
        self._ends.close()


def said_through_a_wire(plane: Plane, address: str) -> bytes:
    """What somebody on the way saw of a session that writes a word."""
    wire = Wire(plane.port)
    with connect(address.replace(str(plane.port), str(wire.port)), timeout_s=WAIT_S) as session:
        Config(session, "/settings").put("a word that is nobody else's business")
    wire.close()
    return bytes(wire.seen)


def test_neither_the_secret_nor_the_data_can_be_read_on_the_way(plane: Plane) -> None:
    seen = said_through_a_wire(plane, plane.elsewhere())
    assert len(seen) > 1_000
    assert access.read(plane.file).secret.encode() not in seen
    assert b"nobody else's business" not in seen


def test_in_a_network_that_is_declared_trusted_it_speaks_plain_text(tmp_path: Path) -> None:
    plane = Plane(tmp_path / "plane", "&network=trusted")
    try:
        address = f"zk://127.0.0.1:{plane.port}?secret_file={plane.file}"
        seen = said_through_a_wire(plane, address)
        assert b"nobody else's business" in seen
        assert four_letter_word(plane.port, "ruok") == "imok"
    finally:
        plane.end()


def test_a_client_on_the_same_machine_goes_on_when_the_server_was_killed(plane: Plane) -> None:
    with connect(plane.address, timeout_s=WAIT_S) as session:
        Config(session, "/settings").put(1)
        plane.end()
        found = eventually(lambda: Config(session, "/settings").get(), "it answers again")
        assert found.value == 1


def test_a_stranger_is_told_nothing_not_even_how_the_server_is(plane: Plane) -> None:
    for word in ("ruok\n", "srvr\n", "mntr\n", "isro\n"):
        assert four_letter_word(plane.port, word) == ""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", plane.port), timeout=WAIT_S) as plain,
        pytest.raises(OSError, match=r"CERTIFICATE_REQUIRED|certificate required|reset"),
        context.wrap_socket(plain) as link,
    ):
        link.sendall(b"ruok")
        assert link.recv(4) == b""
        raise ConnectionResetError("reset")


def test_whoever_has_another_secret_or_none_does_not_reach_it(plane: Plane, tmp_path: Path) -> None:
    access.kept(tmp_path / "another")
    with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
        connect(plane.elsewhere(tmp_path / "another"), timeout_s=2)
    with pytest.raises(Refused, match="secret_file"):
        connect(f"zk://127.0.0.1:{plane.port}?verify=secret", timeout_s=2)
    with pytest.raises(Unavailable, match="speaks TLS only"):
        connect(f"zk://127.0.0.1:{plane.port}?secret_file={plane.file}", timeout_s=2)


def test_a_worker_reaches_the_server_and_cannot_pass_for_one(plane: Plane, tmp_path: Path) -> None:
    owner, file = access.read(plane.file), tmp_path / "worker"
    lesser = tls.for_workers(owner, parse(plane.elsewhere()))
    assert owner.secret.encode() not in lesser.document()
    access.keep(file, lesser)
    with connect(plane.address, timeout_s=WAIT_S) as session:
        session.nodes.ensure("/holdfast/models")
    with connect(plane.elsewhere(file), timeout_s=WAIT_S) as session:
        Config(session, "/holdfast/models/m").put(1)
        with pytest.raises(Refused):
            Config(session, "/holdfast/jobs/evil").put(1)
    # He listens where the server was, and shows what he has.
    assert lesser.certificates is not None
    (tmp_path / "identity").write_text(lesser.certificates[0])
    poses = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    poses.load_cert_chain(tmp_path / "identity")
    here, there = socket.socketpair()
    with here, there, ExitStack() as closing:
        posing = threading.Thread(target=lambda: _pose(poses, there))
        posing.start()
        closing.callback(posing.join)
        with pytest.raises(ssl.SSLCertVerificationError):
            tls.context(TLS(verify="secret"), owner).wrap_socket(here)


def _pose(context: ssl.SSLContext, link: socket.socket) -> None:
    with suppress(OSError):
        context.wrap_socket(link, server_side=True)


def test_strangers_who_say_nothing_do_not_keep_others_out(plane: Plane) -> None:
    with ExitStack() as closing:
        silent = []
        for _ in range(HANDSHAKES_MAX + 40):
            link = socket.create_connection(("127.0.0.1", plane.port), timeout=WAIT_S)
            silent.append(closing.enter_context(link))
        with connect(plane.elsewhere(), timeout_s=WAIT_S) as session:
            Config(session, "/settings").put(1)
        # The oldest had to go, so that there was room.
        for link in silent[:40]:
            with suppress(ConnectionResetError):
                assert link.recv(1) == b""
        silent[-1].setblocking(False)
        with pytest.raises(BlockingIOError):
            silent[-1].recv(1)
