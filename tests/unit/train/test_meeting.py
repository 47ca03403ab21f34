"""Meetings and listeners: who gets in, who waits, who is sent away, who is suspected."""

from __future__ import annotations

import random
import socket
import threading
import time
from functools import partial

import pytest

from holdfast.train.members.greeting import Epoch, Hello, probe
from holdfast.train.members.listener import PeerListener
from holdfast.train.members.wakeup import Wakeup
from holdfast.wire.errors import Occupied
from tests.credentials import credentials
from tests.unit.train.meshes import JOB, LIMIT_S, Listeners, Thread
from tests.waiting import eventually


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_all_members_meet_in_any_order_and_see_the_same(count: int) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with Listeners(count) as listeners:
        members = list(range(count))

        def meet(worker: int, pause_s: float) -> object:
            time.sleep(pause_s)  # pause: they come in any order
            return listeners.meet(worker, members, step=worker * 10)

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


def test_a_caller_of_a_newer_view_waits_at_the_listener_until_we_are_there() -> None:
    with Listeners(2) as listeners:
        early = Thread(lambda: listeners.meet(1, [0, 1], view=7))
        old = listeners.meet(0, [0], view=6)
        time.sleep(0.2)  # pause: it would have given up by then
        assert early.is_alive() and old is not None and old[0].broken is None
        late = listeners.meet(0, [0, 1], view=7)
        assert late is not None and early.result() is not None


def test_a_caller_of_an_older_view_gets_nowhere_and_gives_up_when_it_hears_of_the_newer() -> None:
    with Listeners(2) as listeners:
        heard = threading.Event()
        assert listeners.meet(0, [0], view=7) is not None
        late = Thread(lambda: listeners.meet(1, [0, 1], view=6, over=heard.is_set))
        time.sleep(0.3)  # pause: it would have given up by then
        assert late.is_alive()
        heard.set()
        listeners.wakeups[1].set()
        assert late.result() is None


def test_a_member_that_lost_its_connections_makes_all_meet_again_in_the_next_round() -> None:
    with Listeners(3) as listeners:
        members = [0, 1, 2]
        threads = [Thread(partial(listeners.meet, w, members)) for w in members]
        first = [thread.result()[0] for thread in threads]
        first[0].close()  # the lowest: nobody is called by it
        again = Thread(lambda: listeners.meet(0, members, round_=1))
        eventually(lambda: first[1].broken and first[2].broken, "both have noticed")
        others = [Thread(partial(listeners.meet, w, members, round_=1)) for w in (1, 2)]
        assert all(thread.result() is not None for thread in [again, *others])


def test_a_meeting_gives_up_when_a_peer_is_in_a_later_round() -> None:
    with Listeners(2) as listeners:
        later = Thread(lambda: listeners.meet(1, [0, 1], round_=3))
        assert listeners.meet(0, [0, 1], round_=1) is None
        assert listeners.listeners[0].round == 3
        assert listeners.meet(0, [0, 1], round_=3) is not None
        assert later.result() is not None


def test_strangers_are_sent_away_and_harm_nobody() -> None:
    with Listeners(2) as listeners:
        host, port = listeners.listeners[0].address
        line = b"GET / HTTP/1.1\r\n\r\n"
        with socket.create_connection((host, port)) as http:
            http.sendall(line)
            http.settimeout(LIMIT_S)
            with pytest.raises((ConnectionResetError, EOFError)):
                if not http.recv(1):
                    raise EOFError
        silent = socket.create_connection((host, port))
        threads = [Thread(partial(listeners.meet, w, [0, 1])) for w in (0, 1)]
        assert all(thread.result() is not None for thread in threads)
        silent.close()


@pytest.mark.parametrize(
    "hello",
    [
        Hello("probe", "another", 1, 0, Epoch(1, 0)),
        Hello("probe", JOB, 1, 5, Epoch(1, 0)),
        Hello("probe", JOB, 0, 0, Epoch(1, 0)),
    ],
    ids=["of another job", "for another worker", "we ourselves"],
)
def test_a_probe_that_is_not_for_us_is_not_answered(hello: Hello) -> None:
    with Listeners(1) as listeners:
        assert probe({0: hello}, listeners.addresses, lambda: True, credentials(JOB)) == {}


def test_a_listener_answers_where_its_worker_is() -> None:
    with Listeners(1) as listeners:
        hello = Hello("probe", JOB, 1, 0, Epoch(9, 0))
        assert probe({0: hello}, listeners.addresses, lambda: True, credentials(JOB)) == {
            0: Epoch(0, 0)
        }
        listeners.meet(0, [0], view=4)
        assert probe({0: hello}, listeners.addresses, lambda: True, credentials(JOB)) == {
            0: Epoch(4, 0)
        }


def test_who_does_not_answer_is_suspected_and_still_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.train.members.meeting.MEET_S", 0.3)
    monkeypatch.setattr("holdfast.train.members.greeting.PROBE_S", 0.1)
    with Listeners(3) as listeners, socket.create_server(("127.0.0.1", 0)) as frozen:
        real = listeners.addresses[1]
        # Worker 2 answers at its listener, and is not there yet.
        listeners.addresses[1] = "{}:{}".format(*frozen.getsockname())  # takes calls, never answers
        waiting = Thread(lambda: listeners.meet(0, [0, 1, 2]))
        eventually(lambda: listeners.suspected[0] == {1}, "it is suspected")
        assert waiting.is_alive()
        listeners.addresses[1] = real
        others = [Thread(partial(listeners.meet, w, [0, 1, 2])) for w in (1, 2)]
        assert all(thread.result() is not None for thread in [waiting, *others])
        assert listeners.suspected[0] == {1}, "who only computes is not suspected"


def test_a_port_that_a_stranger_holds_is_a_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        with pytest.raises(Occupied, match=str(port)):
            PeerListener(credentials(JOB), 0, "127.0.0.1", port, Wakeup())
