"""What Ctrl-C does to the demos and to `holdfast run`, wherever it comes."""

from __future__ import annotations

import signal
import threading
from importlib import util
from types import ModuleType

import pytest

from holdfast.cli.run.runner import Interrupts
from tests.unit.cli.running import ROOT

WAIT_S = 20.0


@pytest.fixture
def ctrl_c() -> ModuleType:
    """The module of the examples, which are no package."""
    spec = util.spec_from_file_location("ctrl_c", ROOT / "examples" / "ctrl_c.py")
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_the_first_ctrl_c_of_a_demo_is_not_raised_where_it_may_be_lost_but_at_the_next_look(
    ctrl_c: ModuleType, number: signal.Signals
) -> None:
    with ctrl_c.taken():
        ctrl_c.check()
        signal.raise_signal(number)
        for _ in range(2):  # who swallows it is told again
            with pytest.raises(KeyboardInterrupt):
                ctrl_c.pause(0.0)


def test_the_second_ctrl_c_of_a_demo_is_raised_where_it_comes(ctrl_c: ModuleType) -> None:
    with ctrl_c.taken():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_after_a_demo_its_signals_are_as_before_and_forgotten(ctrl_c: ModuleType) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with ctrl_c.taken():
        signal.raise_signal(signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    with ctrl_c.taken():
        ctrl_c.check()


def test_a_ctrl_c_of_a_run_that_comes_while_its_wakeup_is_locked_is_counted() -> None:
    """Its handler runs on the thread that it interrupts: a lock of that one is never free."""
    interrupts = Interrupts()

    def interrupted() -> None:
        with interrupts.wakeup._cond:  # type: ignore[attr-defined]  # where `wakeup.wait` is, just before it sleeps
            interrupts._came(signal.SIGTERM, None)

    thread = threading.Thread(target=interrupted, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive(), "the handler waits for its own thread"
    assert (interrupts.count, interrupts.exit_code) == (1, 128 + signal.SIGTERM)
