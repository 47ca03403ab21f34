"""The proxy that loses replies and holds requests back does what tests believe of it."""

from __future__ import annotations

import socket
import struct

from holdfast.coordination.embedded import protocol
from tests.contract.cutting import CuttingProxy

WAIT_S = 60.0
EVENT = struct.pack("!i", protocol.XID_WATCH_EVENT) + bytes(60_000)


def frame(body: bytes) -> bytes:
    return struct.pack("!i", len(body)) + body


def received(link: socket.socket, body: bytes) -> None:
    """Wait for this frame."""
    wanted, found = frame(body), b""
    while len(found) < len(wanted):
        more = link.recv(len(wanted) - len(found))
        assert more, "the other side has hung up"
        found += more
    assert found == wanted


def test_a_request_of_a_client_that_has_died_arrives_whatever_it_was_told_meanwhile() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        CuttingProxy(listener.getsockname()[1]) as proxy,
    ):
        client = socket.create_connection(("127.0.0.1", proxy.port), WAIT_S)
        listener.settimeout(WAIT_S)
        server, _ = listener.accept()
        server.settimeout(WAIT_S)
        with server, client:
            client.sendall(frame(b"hello"))
            received(server, b"hello")
            server.sendall(frame(b"welcome"))
            received(client, b"welcome")
            proxy.hold_the_next(protocol.MULTI)
            request = struct.pack("!ii", 7, protocol.MULTI)
            client.sendall(frame(request))
            assert proxy.held.wait(WAIT_S)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()  # at once, as the kernel does it for a process that was killed
            for _ in range(400):  # more than sockets hold: they are read
                server.sendall(frame(EVENT))
            proxy.release()
            received(server, request)
            server.sendall(frame(struct.pack("!i", 7)))
            assert proxy.answered.wait(WAIT_S)
            assert server.recv(1) == b"", "it hangs up when all is said"
