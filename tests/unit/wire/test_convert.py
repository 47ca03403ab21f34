"""Messages give back the values that they were made of, and nothing else becomes a value."""

from __future__ import annotations

import dataclasses
from collections.abc import ItemsView

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.wire import convert
from holdfast.wire.errors import BugError, Refused
from holdfast.wire.limits import EXIT_DETAIL_SHORT_CHARACTERS
from holdfast.wire.orders import Forget, GiveView, Order, View
from holdfast.wire.proto import cluster_pb2 as pb
from holdfast.wire.reports import Exit, ExitKind, NodeFacts, Part, WorkerFacts, WorkerPhase
from holdfast.wire.room import Resources
from tests.unit.wire import values


@given(values.orders)
def test_an_order_comes_back_as_it_was(order: Order) -> None:
    raw = convert.order_message(order).SerializeToString()
    assert convert.order_from(convert.parsed(pb.Order, raw)) == order


@given(values.snapshots)
def test_a_snapshot_comes_back_as_it_was(facts: NodeFacts) -> None:
    raw = convert.facts_message(facts).SerializeToString()
    assert convert.facts_from(convert.parsed(pb.NodeFacts, raw)) == facts


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_refused(raw: bytes) -> None:
    for kind, read in ((pb.Order, convert.order_from), (pb.NodeFacts, convert.facts_from)):
        try:
            read(convert.parsed(kind, raw))  # type: ignore[arg-type]
        except Refused as refusal:
            assert refusal.fix


@given(values.snapshots, st.randoms(use_true_random=False), st.integers(1, 8))
def test_a_damaged_snapshot_is_a_value_or_refused(facts: NodeFacts, chance, count: int) -> None:  # type: ignore[no-untyped-def]
    raw = bytearray(convert.facts_message(facts).SerializeToString())
    for _ in range(count):
        raw[chance.randrange(len(raw))] = chance.randrange(256)
    try:
        found = convert.facts_from(convert.parsed(pb.NodeFacts, bytes(raw)))
    except Refused as refusal:
        assert refusal.fix
    else:
        assert isinstance(found, NodeFacts)


class _Looked(dict[int, tuple[int, ...]]):
    """Lanes that count how often somebody goes over all of them."""

    looks = 0

    def items(self) -> ItemsView[int, tuple[int, ...]]:  # type: ignore[override]
        self.looks += 1
        return super().items()


def test_telling_all_members_of_a_view_goes_over_its_members_once() -> None:
    lanes = _Looked({worker: (worker,) for worker in range(50)})
    view = View(3, lanes, addresses={worker: f"10.0.0.1:{worker}" for worker in lanes})
    told = [convert.order_message(GiveView("n", "j", worker, view)) for worker in range(50)]
    assert lanes.looks == 1
    told[0].view.members.pop()
    assert [len(one.view.members) for one in told] == [49, *49 * [50]], "each has its own copy"
    later = dataclasses.replace(view, number=4)
    assert convert.order_message(GiveView("n", "j", 1, later)).view.number == 4
    assert convert.order_from(told[7]) == GiveView("n", "j", 7, view)


def test_the_same_view_is_that_of_the_order_before_and_of_no_other_job() -> None:
    view = View(3, {1: (0,), 2: (1,)})
    same = pb.Order(node="n", job="j", worker=2, same_view=pb.SameView())
    given = GiveView("n", "j", 1, view)
    assert convert.order_from(same, given) == GiveView("n", "j", 2, view)
    for before in (None, Forget("n", "j", 1), GiveView("n", "k", 1, view)):
        with pytest.raises(Refused, match="none before it"):
            convert.order_from(same, before)


def test_an_order_says_whose_it_is_and_what_it_wants() -> None:
    for message in (
        pb.Order(node="n", job="j", worker=1),
        pb.Order(job="j", worker=1, forget=pb.Forget()),
        pb.Order(node="n", worker=1, forget=pb.Forget()),
    ):
        with pytest.raises(Refused):
            convert.order_from(message)
    assert convert.order_from(pb.Order(node="n", job="j", worker=1, forget=pb.Forget())) == Forget(
        "n", "j", 1
    )


def _worker(**fields: object) -> pb.WorkerFacts:
    return pb.WorkerFacts(**{"job": "j", "worker": 1, "phase": pb.PHASE_READY, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "workers",
    [
        [_worker(phase=0)],
        [_worker(phase=77)],
        [_worker(job="")],
        [_worker(), _worker()],
        [_worker(exit=pb.Exit())],
        [_worker(exit={"kind": 99})],
        [_worker(parts=[pb.Parts(attempt=1), pb.Parts(attempt=1)])],
    ],
)
def test_a_report_that_makes_no_sense_is_refused(workers: list[pb.WorkerFacts]) -> None:
    with pytest.raises(Refused):
        convert.facts_from(pb.NodeFacts(node="n", workers=workers))


@pytest.mark.parametrize("room", [{"cpu": -1}, {"cpu": float("nan")}, {"cpu": float("inf")}])
def test_a_room_that_no_machine_has_is_refused(room: dict[str, float]) -> None:
    with pytest.raises(Refused):
        convert.resources_from(pb.Resources(**room))  # type: ignore[arg-type]


def test_a_lane_holder_that_is_named_twice_is_refused() -> None:
    view = pb.View(number=1, members=[pb.Member(worker=1), pb.Member(worker=1)])
    with pytest.raises(Refused, match="twice"):
        convert.order_from(pb.Order(node="n", job="j", worker=1, view=view))


def _gone(worker: int, detail: str) -> WorkerFacts:
    return WorkerFacts("j", worker, WorkerPhase.GONE, exit=Exit(ExitKind.ERROR, detail))


def test_tracebacks_are_cut_before_a_snapshot_is_too_large() -> None:
    facts = NodeFacts("n", Resources(), tuple(_gone(n, "x" * 1_000) for n in range(10)))
    assert convert.facts_from(convert.facts_message(facts)) == facts
    small = convert.facts_message(facts, bytes_max=5_000)
    assert small.ByteSize() <= 5_000
    assert {len(worker.exit.detail) for worker in small.workers} == {EXIT_DETAIL_SHORT_CHARACTERS}


def test_facts_that_do_not_fit_are_not_sent_in_part() -> None:
    part = Part("k" * 100, 1, "d" * 64)
    worker = dataclasses.replace(_gone(1, ""), parts={1: (part,) * 100})
    with pytest.raises(BugError, match="bytes"):
        convert.facts_message(NodeFacts("n", Resources(), (worker,)), bytes_max=5_000)


def test_what_a_process_printed_is_sent_even_if_it_is_no_text() -> None:
    facts = NodeFacts("n", Resources(), (_gone(1, "broken \udcff end"),))
    found = convert.facts_from(convert.facts_message(facts)).workers[0].exit
    assert found == Exit(ExitKind.ERROR, "broken ? end")
