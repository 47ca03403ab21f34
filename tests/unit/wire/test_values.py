"""Bytes give back the values that they were made of, and nothing else becomes a value."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import ItemsView

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.control.store import codec
from holdfast.wire import values, worker_messages
from holdfast.wire.errors import BugError, Refused
from holdfast.wire.orders import Forget, GiveView, Order, View
from holdfast.wire.reports import Exit, ExitKind, NodeFacts, Part, WorkerFacts, WorkerPhase
from holdfast.wire.resources import Resources
from holdfast.wire.values import EXIT_DETAIL_SHORT_CHARACTERS
from tests.unit.wire import samples

ANY = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
KEYS = st.sampled_from(["forget", "give_view", "node", "job", "worker", "workers", "view"])


def nested(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4)


@given(samples.orders)
def test_an_order_comes_back_as_it_was(order: Order) -> None:
    assert values.order_from(values.order_bytes(order)) == order


@given(samples.snapshots)
def test_a_snapshot_comes_back_as_it_was(facts: NodeFacts) -> None:
    assert values.facts_from(values.facts_bytes(facts)) == facts


@given(st.binary(max_size=200) | st.recursive(ANY, nested).map(json.dumps).map(str.encode))
def test_any_bytes_are_a_value_or_refused(raw: bytes) -> None:
    for read in (values.order_from, values.facts_from):
        try:
            read(raw)
        except Refused as refusal:
            assert refusal.fix
    assert values.named(raw)


@given(samples.snapshots, st.randoms(use_true_random=False), st.integers(1, 8))
def test_a_damaged_snapshot_is_a_value_or_refused(facts: NodeFacts, chance, count: int) -> None:  # type: ignore[no-untyped-def]
    raw = bytearray(values.facts_bytes(facts))
    for _ in range(count):
        raw[chance.randrange(len(raw))] = chance.randrange(256)
    try:
        found = values.facts_from(bytes(raw))
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
    told = [values.order_bytes(GiveView("n", "j", worker, view)) for worker in range(50)]
    assert lanes.looks == 1
    assert values.order_from(told[7]) == GiveView("n", "j", 7, view)
    later = dataclasses.replace(view, number=4)
    assert values.order_from(values.order_bytes(GiveView("n", "j", 1, later))).view.number == 4  # type: ignore[union-attr]


def test_a_view_has_the_same_bytes_in_its_node_in_an_order_and_on_a_line() -> None:
    view = View(3, {1: (0, 1, 5), 12: (2, 3, 4)}, 7, "m", {1: "a:1", 12: "b:2"}, 2)
    order = values.order_bytes(GiveView("n", "j", 1, view))
    assert codec.view_to(view) in order
    assert values.order_of(*worker_messages.parse(order + b"\n")) == GiveView("n", "j", 1, view)


def test_the_same_view_is_that_of_the_order_before_and_of_no_other_job() -> None:
    view = View(3, {1: (0,), 2: (1,)})
    same = values.order_bytes(GiveView("n", "j", 2, view), with_view=False)
    given = GiveView("n", "j", 1, view)
    assert values.order_from(same, given) == GiveView("n", "j", 2, view)
    for before in (None, Forget("n", "j", 1), GiveView("n", "k", 1, view)):
        with pytest.raises(Refused, match="none before it"):
            values.order_from(same, before)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"forget": {"node": "", "job": "j", "worker": 1}},
        {"forget": {"node": "n", "job": "", "worker": 1}},
        {"forget": {"node": "n", "job": "j", "worker": "one"}},
        {"take_share": {"node": "n", "job": "j", "worker": 1, "share": 2, "shares": 2}},
        {"give_view": {"node": "n", "job": "j", "worker": 1, "view": {"number": 1}}},
        {"dance": {"node": "n", "job": "j", "worker": 1}},
        {"forget": {}, "stop_worker": {}},
    ],
)
def test_an_order_that_makes_no_sense_is_refused(body: object) -> None:
    with pytest.raises(Refused):
        values.order_from(json.dumps(body).encode())


def test_an_order_of_an_unknown_kind_can_still_be_named() -> None:
    raw = json.dumps({"dance": {"node": "n", "job": "j", "worker": 1, "more": 2}}).encode()
    assert values.named(raw) == ("dance", "j", 1)


WORKER = {"job": "j", "worker": 1, "phase": "ready"}


@pytest.mark.parametrize(
    "workers",
    [
        [WORKER | {"phase": ""}],
        [WORKER | {"phase": "dancing"}],
        [WORKER | {"job": ""}],
        [WORKER, WORKER],
        [WORKER | {"exit": {}}],
        [WORKER | {"parts": {"one": []}}],
    ],
)
def test_a_report_that_makes_no_sense_is_refused(workers: list[object]) -> None:
    whole = {"node": "n", "capacity": {}, "workers": workers}
    with pytest.raises(Refused):
        values.facts_from(json.dumps(whole).encode())


def test_why_a_worker_ended_by_the_word_of_a_newer_agent_counts_as_an_error() -> None:
    worker = WORKER | {"phase": "gone", "exit": {"kind": "abducted", "detail": "why"}}
    whole = {"node": "n", "capacity": {}, "workers": [worker]}
    found = values.facts_from(json.dumps(whole).encode())
    assert found.workers[0].exit == Exit(ExitKind.ERROR, "why")


@pytest.mark.parametrize("resources", [{"cpu": -1}, {"cpu": "nan"}, {"cpu": "inf"}, {"gpu": -1}])
def test_resources_that_no_machine_has_are_refused(resources: dict[str, object]) -> None:
    with pytest.raises(Refused):
        values.facts_from(json.dumps({"node": "n", "capacity": resources}).encode())


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 1e-300])
def test_a_metric_that_is_no_number_is_reported_as_it_is(loss: float) -> None:
    worker = WorkerFacts("j", 1, WorkerPhase.RUNNING, metrics={"loss": loss, "lane_ms": 2.0})
    found = values.facts_from(values.facts_bytes(NodeFacts("n", Resources(), (worker,))))
    assert str(found.workers[0].metrics) == str(worker.metrics)
    say = values.Say(True, 1, 2, [], [], False, False, {"loss": loss})
    raw = values.line("say", say)
    assert str(values.parse_body(values.Say, raw, worker_messages.parse(raw)[1])) == str(say)


def _gone(worker: int, detail: str) -> WorkerFacts:
    return WorkerFacts("j", worker, WorkerPhase.GONE, exit=Exit(ExitKind.ERROR, detail))


def test_tracebacks_are_cut_before_a_snapshot_is_too_large() -> None:
    facts = NodeFacts("n", Resources(), tuple(_gone(n, "x" * 1_000) for n in range(10)))
    assert values.facts_from(values.facts_bytes(facts)) == facts
    small = values.facts_bytes(facts, bytes_max=8_000)
    assert len(small) <= 8_000
    ends = [worker.exit for worker in values.facts_from(small).workers]
    assert {len(ended.detail) for ended in ends if ended} == {EXIT_DETAIL_SHORT_CHARACTERS}


def test_facts_that_do_not_fit_are_not_sent_in_part() -> None:
    part = Part("k" * 100, 1, "d" * 64)
    worker = dataclasses.replace(_gone(1, ""), parts={1: (part,) * 100})
    with pytest.raises(BugError, match="bytes"):
        values.facts_bytes(NodeFacts("n", Resources(), (worker,)), bytes_max=5_000)


def test_what_a_process_printed_is_sent_even_if_it_is_no_text() -> None:
    facts = NodeFacts("n", Resources(), (_gone(1, "broken \udcff end"),))
    found = values.facts_from(values.facts_bytes(facts)).workers[0].exit
    assert found == Exit(ExitKind.ERROR, "broken ? end")
