"""The clock, processes and flows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.wire.orders import Attempt
from simulation.flow import Flow, Steps
from simulation.kernel import Kernel, SimulatedProcess, brief


def run(kernel: Kernel) -> None:
    while kernel.step():
        pass


def test_events_run_by_time_and_those_of_one_time_in_the_order_they_were_asked_for() -> None:
    kernel, seen = Kernel(1), list[str]()
    kernel.after(2.0, lambda: seen.append("late"))
    kernel.after(1.0, lambda: seen.append("first"))
    kernel.after(1.0, lambda: seen.append("second"))
    run(kernel)
    assert seen == ["first", "second", "late"]
    assert kernel.now_s == 2.0


def test_what_a_being_was_about_to_do_dies_with_it() -> None:
    kernel, seen = Kernel(1), list[str]()
    process = SimulatedProcess(kernel, "somebody")
    process.begin()
    process.after(1.0, lambda: seen.append("of the first life"))
    process.die()
    process.arrive(lambda: seen.append("said to the dead"))
    process.begin()
    process.after(1.0, lambda: seen.append("of the second life"))
    run(kernel)
    assert seen == ["of the second life"]


def test_what_comes_to_a_stopped_being_waits_until_it_goes_on() -> None:
    kernel, seen = Kernel(1), list[str]()
    process = SimulatedProcess(kernel, "somebody")
    process.begin()
    process.after(1.0, lambda: seen.append("timer"))
    process.stop()
    process.arrive(lambda: seen.append("message"))
    run(kernel)
    assert seen == []
    process.go_on()
    assert seen == ["message", "timer"]


def test_a_stopped_being_that_is_killed_never_does_what_waited() -> None:
    kernel, seen = Kernel(1), list[str]()
    process = SimulatedProcess(kernel, "somebody")
    process.begin()
    process.stop()
    process.arrive(lambda: seen.append("message"))
    process.die()
    process.begin()
    process.go_on()
    assert seen == []


def test_a_wait_of_a_flow_goes_on_once_however_often_it_is_woken() -> None:
    woken: list[Callable[[Any], None]] = []
    got: list[object] = []

    def steps() -> Steps:
        got.append((yield woken.append))
        got.append((yield woken.append))

    Flow(steps())
    woken[0]("a")
    woken[0]("b")
    assert got == ["a"]
    woken[1]("c")
    assert got == ["a", "c"]


def test_a_cancelled_flow_never_goes_on() -> None:
    woken: list[Callable[[Any], None]] = []
    got: list[object] = []

    def steps() -> Steps:
        got.append((yield woken.append))

    Flow(steps()).cancel()
    flow = Flow(steps())
    flow.cancel()
    for wake in woken:
        wake("late")
    assert got == []


def test_a_story_leaves_out_what_says_nothing() -> None:
    assert (
        brief(Attempt(number=2, step=5, view=1, since_s=3.0)) == "Attempt(number=2, step=5, view=1)"
    )
    assert brief({1: (2, 3)}) == "{1: (2, 3)}"


def test_two_kernels_with_the_same_trace_have_the_same_digest() -> None:
    first, second = Kernel(1), Kernel(2)
    first.tell("a", "does", 1)
    second.tell("a", "does", 1)
    assert first.digest() == second.digest()
    second.tell("a", "does", 2)
    assert first.digest() != second.digest()
