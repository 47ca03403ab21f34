"""The table of agents' streams: what counts, what is forgotten, what is bounded."""

from __future__ import annotations

import threading

import pytest

from holdfast.control.decide.commands import Decision, DrainWorker
from holdfast.control.decide.facts import NodeFacts
from holdfast.control.rpc.connections import (
    ORDERS_BYTES,
    ORDERS_WAITING_MAX,
    REPORTS_PER_S_MAX,
    AgentConnection,
    AgentConnections,
    AgentHello,
    steps_pause_s,
)
from holdfast.control.rpc.stream import REPORT_SILENCE_S
from holdfast.wire.errors import BugError
from holdfast.wire.limits import REPORT_STEPS_S
from holdfast.wire.orders import Forget, GiveView, Order, StartWorker, StopWorker, View
from holdfast.wire.resources import Resources
from holdfast.wire.rpc import Denied
from holdfast.wire.values import named, order_from

FACTS = NodeFacts("n1", Resources(cpu=1.0))
MORE = NodeFacts("n1", Resources(cpu=2.0))


class Ends:
    """What was done to a stream."""

    def __init__(self) -> None:
        self.rings = 0
        self.cut: list[Denied] = []

    def ring(self) -> None:
        self.rings += 1


def lines_of(*members: str) -> AgentConnections:
    lines = AgentConnections()
    lines.begin(1)
    lines.set_members(1, dict.fromkeys(members, 100))
    return lines


def attach(
    lines: AgentConnections, node: str = "n1", process: str = "p", serial: int = 1
) -> tuple[AgentConnection, Ends]:
    ends = Ends()
    return lines.attach(AgentHello(node, "s", process, serial), ends.ring, ends.cut.append), ends


def give(lines: AgentConnections, *orders: Order, term: int = 1) -> None:
    for order in orders:
        lines.order(term, Decision(order, "a test"))


def taken(lines: AgentConnections, line: AgentConnection) -> list[str]:
    return [named(order).kind for order in lines.take(line)]


def started(worker: int, size: int = 0) -> StartWorker:
    return StartWorker("n1", "j", worker, "", ("x" * size,), Resources())


def test_nobody_is_let_in_before_there_is_a_term() -> None:
    lines = AgentConnections()
    with pytest.raises(Denied, match="does not lead"):
        attach(lines)
    lines.begin(1)
    lines.end()
    with pytest.raises(Denied, match="does not lead"):
        attach(lines)


def test_facts_outlive_their_stream_but_not_their_session() -> None:
    lines = lines_of("n1")
    line, _ = attach(lines)
    lines.report(line, FACTS)
    lines.detach(line)
    assert lines.observed().nodes == {"n1": FACTS}
    assert lines.connection("n1") == 0
    # Gone and back between two looks: the same name, another session.
    lines.set_members(1, {"n1": 101})
    assert lines.observed().nodes == {}
    assert lines.observed().unreported == {"n1"}


def test_what_waits_for_a_former_session_is_not_told() -> None:
    lines = lines_of("n1")
    line, _ = attach(lines)
    give(lines, started(1))
    lines.set_members(1, {"n1": 101})
    assert taken(lines, line) == []


def test_members_that_were_read_for_another_term_do_not_count() -> None:
    lines = lines_of("n1")
    lines.begin(2)
    lines.set_members(1, {"n9": 1})
    assert lines.observed().unreported == frozenset()


def test_a_newer_stream_replaces_an_older_one_and_never_the_other_way() -> None:
    lines = lines_of("n1")
    old, ends = attach(lines, serial=1)
    new, _ = attach(lines, serial=3)
    assert len(ends.cut) == 1
    with pytest.raises(Denied, match="newer stream"):
        attach(lines, serial=2)
    lines.report(new, FACTS)
    lines.report(old, MORE)
    lines.detach(old)
    assert lines.observed().nodes == {"n1": FACTS}
    assert lines.connection("n1") == new.number
    assert attach(lines, process="another", serial=1)[0].number > new.number


def test_orders_keep_their_turn_and_the_newest_of_a_kind_counts() -> None:
    lines = lines_of("n1")
    line, ends = attach(lines)
    stop = StopWorker("n1", "j", 1, 5.0)
    give(lines, stop, started(1), Forget("n1", "j", 2), StopWorker("n1", "j", 1, 1.0))
    orders = lines.take(line)
    assert [named(order).kind for order in orders] == ["start_worker", "forget", "stop_worker"]
    assert order_from(orders[-1]) == StopWorker("n1", "j", 1, 1.0)
    assert ends.rings == 4
    assert lines.take(line) == []


def test_orders_of_another_term_or_to_nobody_are_dropped() -> None:
    lines = lines_of("n1")
    line, _ = attach(lines)
    ghost, _ = attach(lines, "ghost")
    give(lines, started(1), term=2)
    give(lines, StopWorker("ghost", "j", 1, 1.0), StopWorker("nobody", "j", 1, 1.0))
    assert taken(lines, line) == taken(lines, ghost) == []


def test_nothing_leaves_after_the_end() -> None:
    lines = lines_of("n1")
    line, ends = attach(lines)
    give(lines, started(1))
    lines.end()
    assert taken(lines, line) == []
    assert len(ends.cut) == 1
    assert lines.observed().nodes == {}


def test_a_batch_is_bounded_in_bytes_and_never_empty() -> None:
    lines = lines_of("n1")
    line, _ = attach(lines)
    half = ORDERS_BYTES // 2
    give(lines, *(started(worker, half) for worker in range(1, 4)), started(4, 2 * ORDERS_BYTES))
    assert [len(lines.take(line)) for _ in range(5)] == [1, 1, 1, 1, 0]
    give(lines, *(started(worker, half // 2) for worker in range(1, 5)))
    assert [len(lines.take(line)) for _ in range(3)] == [3, 1, 0]


def test_workers_of_one_machine_are_told_of_a_view_once_and_all_get_it() -> None:
    lines = lines_of("n1")
    line, _ = attach(lines)
    view, other = View(3, {1: (0,), 2: (1,)}), View(3, {1: (0, 1)})
    orders: list[Order] = [GiveView("n1", "j", worker, view) for worker in (1, 2, 3)]
    orders += [Forget("n1", "j", 9), GiveView("n1", "j", 4, view), GiveView("n1", "k", 1, other)]
    give(lines, *orders)
    sent = lines.take(line)
    assert [b'"lanes"' in order for order in sent] == [True, False, False, False, True, True]
    found: list[Order] = []
    for message in sent:
        found.append(order_from(message, found[-1] if found else None))
    assert found == orders


def test_a_view_counts_once_in_a_batch_of_those_who_share_it() -> None:
    lines = lines_of("n1")
    line, _ = attach(lines)
    view = View(3, {worker: (worker,) for worker in range(ORDERS_BYTES // 30)})
    give(lines, *(GiveView("n1", "j", worker, view) for worker in range(5)))
    assert [len(lines.take(line)) for _ in range(2)] == [5, 0]


def test_a_stream_that_does_not_take_its_orders_is_cut() -> None:
    lines = lines_of("n1")
    line, ends = attach(lines)
    give(lines, *(started(worker) for worker in range(ORDERS_WAITING_MAX)))
    assert not ends.cut
    give(lines, started(ORDERS_WAITING_MAX))
    assert len(ends.cut) == 1
    assert (lines.connection("n1"), line.waiting) == (0, {})


def test_only_what_differs_is_news() -> None:
    lines = lines_of("n1")
    line, _ = attach(lines)
    lines.report(line, FACTS)
    assert lines.wait(0.0)
    lines.report(line, FACTS)
    assert not lines.wait(0.0)
    waiting = threading.Thread(target=lines.wait, args=(60.0,))
    waiting.start()
    lines.report(line, MORE)
    waiting.join(30.0)
    assert not waiting.is_alive()
    lines.wake()
    assert lines.wait(0.0)


def test_a_record_is_not_an_order() -> None:
    with pytest.raises(BugError, match="not an order"):
        lines_of("n1").order(1, Decision(DrainWorker("j", 1, "why"), "a test"))


def test_reports_of_steps_stay_bounded_and_none_is_so_rare_that_its_stream_seems_dead() -> None:
    assert steps_pause_s(1) == steps_pause_s(100) == REPORT_STEPS_S
    pauses = [steps_pause_s(agents) for agents in range(1, 10_001)]
    assert pauses == sorted(pauses)
    assert all(
        agents / pause_s <= REPORTS_PER_S_MAX for agents, pause_s in enumerate(pauses[:2_500], 1)
    )
    assert max(pauses) <= REPORT_SILENCE_S / 4


def test_all_agents_are_told_when_their_number_asks_for_another_pace_and_only_then() -> None:
    lines = lines_of("n1")
    _, ends = attach(lines)
    lines.set_members(1, dict.fromkeys(["n1", "n2"], 100))
    assert ends.rings == 0
    many = ["n1", *(f"m{number}" for number in range(500))]
    lines.set_members(1, dict.fromkeys(many, 100))
    assert ends.rings == 1
    assert lines.steps_s == steps_pause_s(501) > REPORT_STEPS_S
