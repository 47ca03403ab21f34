"""The mesh: whole messages or `PeerLost`, and nobody waits in vain; plain and over TLS."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from holdfast.train.members.mesh import Mesh
from holdfast.wire.errors import BugError, PeerLost
from tests.credentials import credentials
from tests.unit.train import meshes as made
from tests.unit.train.meshes import LIMIT_S, Thread
from tests.waiting import eventually

Meshes = Callable[[int], AbstractContextManager[list[Mesh]]]


@pytest.fixture(params=["plain", "tls"])
def meshes(request: pytest.FixtureRequest, tmp_path: Path) -> Meshes:
    if request.param == "plain":
        return made.meshes
    shown = credentials(folder=tmp_path / "credentials")
    return lambda count: made.meshes(count, shown)


def test_a_message_of_many_buffers_arrives_whole_in_many_others(meshes: Meshes) -> None:
    chance = random.Random(1)
    with meshes(2) as (one, two):
        data = chance.randbytes(3_000_000)
        sent = [data[at : at + 1_000] for at in range(0, len(data), 1_000)]
        sender = Thread(lambda: one.send(1, *sent, b"", tag=20))
        received = bytearray(len(data))
        view = memoryview(received)
        two.recv_into(0, view[:7], view[7:1_000_007], view[1_000_007:], tag=20)
        sender.result()
        assert received == data


def test_a_message_of_unknown_size_arrives_whole(meshes: Meshes) -> None:
    with meshes(2) as (one, two):
        one.send(1, b"ab", b"cd", tag=3)
        assert two.recv(0, tag=3) == b"abcd"


@pytest.mark.parametrize("count", [2, 3, 5])
def test_everybody_exchanges_large_messages_with_everybody_at_once(
    meshes: Meshes, count: int
) -> None:
    size = 4_000_000  # more than the sockets hold: nobody may send everything before it receives
    with meshes(count) as members:

        def exchange(me: int) -> list[int]:
            mesh = members[me]
            arrived: list[int] = []
            received = {peer: bytearray(size) for peer in mesh.peers}
            for turn in range(3):
                mesh.exchange(
                    {peer: [bytes([me, peer, turn]) * (size // 3), b"!"] for peer in mesh.peers},
                    {
                        peer: [memoryview(buffer)[: size // 3 * 3 + 1]]
                        for peer, buffer in received.items()
                    },
                    tag=turn,
                    done=arrived.append,
                )
                for peer, buffer in received.items():
                    assert bytes(buffer[:3]) == bytes([peer, me, turn])
                    assert buffer[size // 3 * 3] == ord("!")
            return arrived

        threads = [Thread(partial(exchange, me)) for me in range(count)]
        for me, thread in enumerate(threads):
            assert sorted(thread.result()) == sorted(list(members[me].peers) * 3)


def test_a_peer_that_hangs_up_breaks_the_whole_mesh_and_is_named(meshes: Meshes) -> None:
    with meshes(3) as (one, two, three):
        waiting = Thread(lambda: two.recv(0))  # from one who has nothing to say
        three.close()
        with pytest.raises(PeerLost) as lost:
            one.recv_into(2, bytearray(4))
        assert lost.value.peer == 2
        with pytest.raises(PeerLost):
            waiting.result()  # one has passed it on
        with pytest.raises(PeerLost):
            one.send(1, b"too late")


def test_close_wakes_whoever_waits_in_any_way(meshes: Meshes) -> None:
    with meshes(4) as (one, *_others):  # who neither read nor send
        large, received = bytes(50_000_000), bytearray(10)
        waits = [
            Thread(lambda: one.send(1, large)),
            Thread(lambda: one.recv_into(1, received)),
            Thread(lambda: one.recv(2)),
            Thread(lambda: one.exchange({3: [large]}, {3: [received]})),
        ]
        eventually(lambda: set(one.waiting()) == {1, 2, 3}, "all wait")
        one.close(PeerLost("view 9 has come"))
        for wait in waits:
            with pytest.raises(PeerLost, match="view 9 has come"):
                wait.result()


def test_what_was_sent_before_the_end_can_still_be_read(meshes: Meshes) -> None:
    with meshes(2) as (one, two):
        one.send(1, b"the last of the step")
        one.close()
        assert two.recv(0) == b"the last of the step"
        with pytest.raises(PeerLost):
            two.recv(0)


def test_a_message_that_was_not_expected_is_never_taken_for_data(meshes: Meshes) -> None:
    with meshes(2) as (one, two):
        one.send(1, b"abcd", tag=5)
        received = bytearray(b"____")
        with pytest.raises(BugError, match="expected message 6"):
            two.recv_into(0, received, tag=6)
        assert received == b"____"
        assert two.broken is not None
    with meshes(2) as (one, two):
        one.send(1, b"abc")
        with pytest.raises(BugError, match="4 bytes"):
            two.exchange({}, {0: [received]})


def test_a_peer_that_is_through_may_hang_up_while_another_is_waited_for(meshes: Meshes) -> None:
    with meshes(3) as (one, two, three):
        buffers = {1: [bytearray(3)], 2: [bytearray(5)]}
        arrived: list[int] = []
        waiting = Thread(lambda: one.exchange({}, buffers, done=arrived.append))
        two.send(0, b"two")
        eventually(lambda: arrived, "the first is through")
        two.close()
        three.send(0, b"three")
        waiting.result()
        assert [bytes(received[0]) for received in buffers.values()] == [b"two", b"three"]


def test_idle_notices_a_peer_that_hangs_up_and_reads_nothing(meshes: Meshes) -> None:
    with meshes(2) as (one, two):
        wakeup, _other = socket.socketpair()
        two.send(0, b"unread")
        one.idle(wakeup.fileno(), 0.0)
        assert one.broken is None
        assert one.recv(1) == b"unread"
        two.close()
        one.idle(wakeup.fileno(), LIMIT_S)
        assert one.broken is not None and one.broken.peer == 1


def test_a_forked_process_does_not_keep_connections_open(meshes: Meshes) -> None:
    with meshes(2) as (one, two):
        child = os.fork()
        if child == 0:
            time.sleep(10 * LIMIT_S)  # pause: until it is killed
            os._exit(0)
        try:
            # As when the process is killed: the descriptors are closed, nothing is shut down.
            for wire in one._wires.values():
                wire.sock.close()
            with pytest.raises(PeerLost):
                Thread(lambda: two.recv(0)).result()
        finally:
            os.kill(child, 9)
            os.waitpid(child, 0)
