"""The simulated coordination plane and network."""

from __future__ import annotations

from functools import partial
from typing import Any

from holdfast.coordination.embedded import protocol as p
from holdfast.coordination.embedded.acl import OPEN
from holdfast.coordination.embedded.transactions import CheckVersion, Create, Multi, SetData
from simulation.faults import COUNTS_MAX, RATES_MAX, Faults
from simulation.flow import Flow, Steps
from simulation.kernel import Kernel, SimulatedProcess
from simulation.network import Network
from simulation.plane import Client, Plane, refused_at

NODE = "/holdfast/nodes/a"
CREATE = Create(NODE, b"", OPEN, p.FLAG_EPHEMERAL, -1, False)


class Stage:
    """A plane, and one client called `a` that wants nothing by itself."""

    def __init__(self, **rates: float) -> None:
        self.kernel = Kernel(1)
        self.faults = Faults(1, 10.0)
        self.rates = dict.fromkeys(RATES_MAX, 0.0) | {
            name.replace("_", " "): rate for name, rate in rates.items()
        }
        self.faults.rates = self.rates
        self.network = Network(self.kernel, self.faults)
        self.plane = Plane(self.kernel, self.network, self.faults)
        self.process = SimulatedProcess(self.kernel, "a")
        self.process.begin()
        self.ends = 0
        self.wakes = 0
        self.client = Client(self.process, "a", self._lost, self._woken)
        self.got: list[Any] = []

    def _lost(self) -> None:
        self.ends += 1

    def _woken(self) -> None:
        self.wakes += 1

    def ask(self, *waits: Any) -> None:
        def steps() -> Steps:
            for wait in waits:
                self.got.append((yield wait()))

        Flow(steps())

    def pass_s(self, seconds: float) -> None:
        until_s, over = self.kernel.now_s + seconds, list[None]()
        self.kernel.after(until_s - self.kernel.now_s, lambda: over.append(None))
        while not over:
            self.kernel.step()


def test_a_session_lasts_while_its_client_can_be_heard() -> None:
    stage = Stage()
    plane, client = stage.plane, stage.client
    stage.ask(lambda: plane.open(client), lambda: plane.ask(client, CREATE))
    stage.pass_s(60.0)
    assert plane.is_open(client.session)
    assert NODE in plane.tree.nodes


def test_a_client_that_is_cut_off_loses_its_session_and_is_told_when_it_is_back() -> None:
    stage = Stage()
    plane, client = stage.plane, stage.client
    stage.ask(lambda: plane.open(client), lambda: plane.ask(client, CREATE))
    stage.pass_s(1.0)
    plane.expect_silence("a")
    stage.network.mute.add("a")
    stage.network.deaf.add("a")
    stage.pass_s(10.0)
    assert NODE not in plane.tree.nodes
    assert stage.ends == 0
    stage.network.heal()
    stage.pass_s(3.0)
    assert stage.ends == 1


def test_a_client_that_hears_nothing_keeps_its_session_and_knows_of_no_answer() -> None:
    stage = Stage()
    plane, client = stage.plane, stage.client
    stage.ask(lambda: plane.open(client))
    stage.pass_s(1.0)
    plane.expect_silence("a")
    stage.network.deaf.add("a")
    stage.ask(lambda: plane.ask(client, CREATE))
    stage.pass_s(10.0)
    assert stage.got == [True, None]
    assert NODE in plane.tree.nodes


def test_a_client_that_nobody_hears_loses_its_session_and_hears_of_it_at_once() -> None:
    stage = Stage()
    plane, client = stage.plane, stage.client
    stage.ask(lambda: plane.open(client))
    stage.pass_s(1.0)
    plane.expect_silence("a")
    stage.network.mute.add("a")
    stage.ask(lambda: plane.ask(client, CREATE))
    stage.pass_s(10.0)
    assert NODE not in plane.tree.nodes
    assert stage.ends == 1


def test_a_client_is_told_of_no_end_of_a_session_whose_beginning_it_never_heard_of() -> None:
    stage = Stage(reply_lost=1.0)
    stage.ask(lambda: stage.plane.open(stage.client))
    stage.pass_s(0.1)
    session = stage.client.session
    assert stage.plane.is_open(session)
    stage.plane.expire(session)
    stage.pass_s(3.0)
    assert (stage.got, stage.ends) == ([None], 0)
    stage.rates["reply lost"] = 0.0
    stage.ask(lambda: stage.plane.open(stage.client))
    stage.pass_s(0.1)
    stage.plane.expire(stage.client.session)
    stage.pass_s(3.0)
    assert (stage.got, stage.ends) == ([None, True], 1)


def test_what_changed_while_a_client_was_away_wakes_it_when_it_is_back() -> None:
    stage = Stage()
    plane, client = stage.plane, stage.client
    stage.ask(lambda: plane.open(client))
    stage.pass_s(1.0)
    client.watches = lambda event: event.path == "/holdfast/jobs"
    stage.network.deaf.add("a")
    plane.do(SetData("/holdfast/jobs", b"1", -1))
    stage.pass_s(1.0)
    assert stage.wakes == 0
    stage.network.heal()
    stage.pass_s(1.0)
    assert stage.wakes == 1


def test_between_two_machines_one_way_may_be_cut() -> None:
    stage, seen = Stage(), list[str]()
    other = SimulatedProcess(stage.kernel, "b")
    other.begin()
    stage.network.parted.add(("a", "b"))
    stage.network.send("a", other, "b", partial(seen.append, "a to b"))
    stage.network.send("b", stage.process, "a", partial(seen.append, "b to a"))
    stage.pass_s(1.0)
    assert seen == ["b to a"]


def test_nothing_reaches_the_deaf_and_nothing_comes_from_the_mute() -> None:
    stage, seen = Stage(), list[str]()
    stage.network.deaf.add("a")
    stage.network.send("b", stage.process, "a", partial(seen.append, "to the deaf"))
    stage.pass_s(1.0)
    stage.network.heal()
    stage.network.mute.add("b")
    stage.network.send("b", stage.process, "a", partial(seen.append, "from the mute"))
    stage.network.send("c", stage.process, "a", partial(seen.append, "from another"))
    stage.pass_s(1.0)
    assert seen == ["from another"]


def test_a_short_silence_ends_no_session() -> None:
    stage = Stage()
    plane, client = stage.plane, stage.client
    stage.ask(lambda: plane.open(client))
    stage.pass_s(1.0)
    plane.expect_silence("a")
    stage.process.stop()
    stage.pass_s(0.6)
    stage.process.go_on()
    stage.pass_s(10.0)
    assert plane.is_open(client.session)


def test_a_lost_request_changes_nothing_and_a_lost_reply_does() -> None:
    for rates, there in (({"request_lost": 1.0}, False), ({"reply_lost": 1.0}, True)):
        stage = Stage()
        plane, client = stage.plane, stage.client
        stage.ask(lambda plane=plane, client=client: plane.open(client))
        stage.pass_s(1.0)
        stage.rates |= {name.replace("_", " "): rate for name, rate in rates.items()}
        stage.ask(lambda plane=plane, client=client: plane.ask(client, CREATE))
        stage.pass_s(1.0)
        assert stage.got == [True, None]
        assert (NODE in plane.tree.nodes) == there


def test_requests_of_one_client_arrive_in_the_order_in_which_they_were_sent() -> None:
    stage = Stage(delay=0.5)
    plane, client = stage.plane, stage.client
    stage.rates["delay"] = 0.0
    stage.ask(lambda: plane.open(client))
    stage.pass_s(1.0)
    stage.rates["delay"] = 0.5
    for number in range(20):
        write = SetData("/holdfast/nodes", b"%d" % number, number)
        stage.ask(lambda write=write: plane.ask(client, write))
    stage.pass_s(100.0)
    assert [refused_at(outcome) for outcome in stage.got[1:]] == [None] * 20


def test_a_multi_says_which_of_its_operations_was_refused() -> None:
    stage = Stage()
    fine, wrong = CheckVersion("/holdfast", -1), CheckVersion("/holdfast", 7)
    assert refused_at(stage.plane.do(Multi((fine, fine)))) is None
    assert refused_at(stage.plane.do(Multi((fine, wrong, fine)))) == 1
    assert refused_at(stage.plane.do(wrong)) == 0


def test_a_watch_wakes_once_for_many_changes() -> None:
    stage = Stage()
    plane, client = stage.plane, stage.client
    stage.ask(lambda: plane.open(client))
    stage.pass_s(1.0)
    client.watches = lambda event: event.path == "/holdfast/jobs"
    plane.do(SetData("/holdfast/jobs", b"1", -1))
    plane.do(SetData("/holdfast/jobs", b"2", -1))
    plane.do(SetData("/holdfast/nodes", b"3", -1))
    stage.pass_s(1.0)
    assert stage.wakes == 1


def test_a_restarted_server_has_what_its_log_gives_and_nobody_lost_a_session() -> None:
    stage = Stage()
    plane, client = stage.plane, stage.client
    stage.ask(lambda: plane.open(client), lambda: plane.ask(client, CREATE))
    stage.pass_s(1.0)
    before = plane.tree
    plane.fail(5.0)
    stage.ask(lambda: plane.ask(client, SetData(NODE, b"x", -1)))
    stage.pass_s(20.0)
    assert stage.got[2] is None
    assert plane.tree is not before
    assert list(plane.tree.nodes) == list(before.nodes)
    assert plane.is_open(client.session)


def test_a_message_is_for_the_life_that_it_was_sent_to() -> None:
    stage, seen = Stage(), list[str]()
    stage.network.send("b", stage.process, "a", lambda: seen.append("old"))
    stage.process.die()
    stage.process.begin()
    stage.network.send("b", stage.process, "a", lambda: seen.append("new"))
    stage.pass_s(1.0)
    assert seen == ["new"]


def test_messages_are_dropped_and_doubled_between_machines_only() -> None:
    for rates, there, here in (({"drop": 1.0}, 0, 1), ({"double": 1.0}, 2, 1)):
        stage, seen = Stage(**rates), list[str]()
        stage.network.send("b", stage.process, "a", partial(seen.append, "far"))
        stage.network.send("a", stage.process, "a", partial(seen.append, "near"))
        stage.pass_s(10.0)
        assert (seen.count("far"), seen.count("near")) == (there, here)


def test_who_sends_is_told_when_a_message_was_lost_and_only_then() -> None:
    for rates, deaf, told in (({}, False, 0), ({"drop": 1.0}, False, 1), ({}, True, 1)):
        stage, lost = Stage(**rates), list[str]()
        if deaf:
            stage.network.deaf.add("a")
        stage.network.send("b", stage.process, "a", lambda: None, partial(lost.append, "lost"))
        stage.pass_s(10.0)
        assert len(lost) == told


def test_a_fault_that_is_switched_off_by_name_or_kind_does_not_happen() -> None:
    faults = Faults(3, 10.0, frozenset({"drop#2", "delay"}))
    faults.rates = dict.fromkeys(RATES_MAX, 1.0)
    assert [faults.strikes("drop") for _ in range(3)] == [True, False, True]
    assert not faults.strikes("delay")
    assert faults.struck == ["drop#1", "drop#3"]
    faults.quiet = True
    assert not faults.strikes("drop")


def test_a_seed_draws_the_same_faults_again_and_another_seed_others() -> None:
    assert Faults(5, 10.0).planned == Faults(5, 10.0).planned
    assert Faults(5, 10.0).rates == Faults(5, 10.0).rates
    drawn = [Faults(seed, 10.0) for seed in range(60)]
    assert {fault.kind for faults in drawn for fault in faults.planned} == COUNTS_MAX.keys()
