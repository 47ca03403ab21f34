"""Meetings and doors: who gets in, who waits, who is sent away, who is suspected."""

from __future__ import annotations

import random
import socket
import threading
import time
from functools import partial

import pytest

from holdfast.train.members.bell import Bell
from holdfast.train.members.calls import knock
from holdfast.train.members.door import Door
from holdfast.train.members.hello import Epoch, Hello
from holdfast.wire.errors import Occupied
from tests.credentials import credentials
from tests.unit.train.meshes import JOB, LIMIT_S, Doors, Thread


def until(condition: object) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < until_s, "not in time"
        time.sleep(0.01)


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_all_members_meet_in_any_order_and_see_the_same(count: int) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with Doors(count) as doors:
        members = list(range(count))

        def meet(worker: int, pause_s: float) -> object:
            time.sleep(pause_s)
            return doors.meet(worker, members, step=worker * 10)

        threads = [Thread(partial(meet, worker, chance.random() / 10)) for worker in members]
        met = [thread.result() for thread in threads]
        for mesh, meeting in met:
            assert {w: hello.step for w, hello in meeting.brought.items()} == {
                w: w * 10 for w in members
            }
            assert sorted(mesh.peers) == [w for w in members if w != mesh.worker]
        for mesh, _ in met:
            for peer in mesh.peers:
                mesh.send(peer, b"%d" % mesh.worker)
        for mesh, _ in met:
            assert all(mesh.recv(peer) == b"%d" % peer for peer in mesh.peers)
            mesh.close()


def test_a_caller_of_a_newer_view_waits_at_the_door_until_we_are_there() -> None:
    with Doors(2) as doors:
        early = Thread(lambda: doors.meet(1, [0, 1], view=7))
        old = doors.meet(0, [0], view=6)
        time.sleep(0.2)
        assert early.is_alive() and old is not None and old[0].broken is None
        late = doors.meet(0, [0, 1], view=7)
        assert late is not None and early.result() is not None


def test_a_caller_of_an_older_view_gets_nowhere_and_gives_up_when_it_hears_of_the_newer() -> None:
    with Doors(2) as doors:
        heard = threading.Event()
        assert doors.meet(0, [0], view=7) is not None
        late = Thread(lambda: doors.meet(1, [0, 1], view=6, over=heard.is_set))
        time.sleep(0.3)
        assert late.is_alive()
        heard.set()
        doors.bells[1].ring()
        assert late.result() is None


def test_a_member_that_lost_its_connections_makes_all_meet_again_in_the_next_round() -> None:
    with Doors(3) as doors:
        members = [0, 1, 2]
        threads = [Thread(lambda w=w: doors.meet(w, members)) for w in members]
        first = [thread.result()[0] for thread in threads]
        first[0].close()  # the lowest: nobody is called by it
        again = Thread(lambda: doors.meet(0, members, round_=1))
        until(lambda: first[1].broken and first[2].broken)
        others = [Thread(lambda w=w: doors.meet(w, members, round_=1)) for w in (1, 2)]
        assert all(thread.result() is not None for thread in [again, *others])


def test_a_meeting_gives_up_when_a_peer_is_in_a_later_round() -> None:
    with Doors(2) as doors:
        later = Thread(lambda: doors.meet(1, [0, 1], round_=3))
        assert doors.meet(0, [0, 1], round_=1) is None
        assert doors.doors[0].round == 3
        assert doors.meet(0, [0, 1], round_=3) is not None
        assert later.result() is not None


def test_strangers_are_sent_away_and_harm_nobody() -> None:
    with Doors(2) as doors:
        host, port = doors.doors[0].address
        line = b"GET / HTTP/1.1\r\n\r\n"
        with socket.create_connection((host, port)) as http:
            http.sendall(line)
            http.settimeout(LIMIT_S)
            with pytest.raises((ConnectionResetError, EOFError)):
                if not http.recv(1):
                    raise EOFError
        silent = socket.create_connection((host, port))
        threads = [Thread(lambda w=w: doors.meet(w, [0, 1])) for w in (0, 1)]
        assert all(thread.result() is not None for thread in threads)
        silent.close()


@pytest.mark.parametrize(
    "hello",
    [
        Hello("knock", "another", 1, 0, Epoch(1, 0)),
        Hello("knock", JOB, 1, 5, Epoch(1, 0)),
        Hello("knock", JOB, 0, 0, Epoch(1, 0)),
    ],
    ids=["of another job", "for another worker", "we ourselves"],
)
def test_a_knock_that_is_not_for_us_is_not_answered(hello: Hello) -> None:
    with Doors(1) as doors:
        assert knock({0: hello}, doors.addresses, lambda: True, credentials(JOB)) == {}


def test_a_door_answers_where_its_worker_is() -> None:
    with Doors(1) as doors:
        hello = Hello("knock", JOB, 1, 0, Epoch(9, 0))
        assert knock({0: hello}, doors.addresses, lambda: True, credentials(JOB)) == {
            0: Epoch(0, 0)
        }
        doors.meet(0, [0], view=4)
        assert knock({0: hello}, doors.addresses, lambda: True, credentials(JOB)) == {
            0: Epoch(4, 0)
        }


def test_who_does_not_answer_is_suspected_and_still_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.train.members.meeting.MEET_S", 0.3)
    monkeypatch.setattr("holdfast.train.members.calls.KNOCK_S", 0.1)
    with Doors(3) as doors, socket.create_server(("127.0.0.1", 0)) as frozen:
        real = doors.addresses[1]
        # Worker 2 answers at its door, and is not there yet.
        doors.addresses[1] = "{}:{}".format(*frozen.getsockname())  # takes calls, never answers
        waiting = Thread(lambda: doors.meet(0, [0, 1, 2]))
        until(lambda: doors.suspected[0] == {1})
        assert waiting.is_alive()
        doors.addresses[1] = real
        others = [Thread(lambda w=w: doors.meet(w, [0, 1, 2])) for w in (1, 2)]
        assert all(thread.result() is not None for thread in [waiting, *others])
        assert doors.suspected[0] == {1}, "who only computes is not suspected"


def test_a_port_that_a_stranger_holds_is_a_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        with pytest.raises(Occupied, match=str(port)):
            Door(credentials(JOB), 0, "127.0.0.1", port, Bell())
