"""Whoever loads lets others go first."""

from __future__ import annotations

import os
import threading

from holdfast.serve.replica.priority import step_back


def standing() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_only_the_thread_that_asks_for_it_steps_back_and_what_it_starts() -> None:
    before = standing()
    found = []

    def child() -> None:
        found.append(standing())

    def steps_back() -> None:
        step_back(before + 3, 0.05)
        child()
        inner = threading.Thread(target=child)
        inner.start()
        inner.join()

    thread = threading.Thread(target=steps_back)
    thread.start()
    thread.join()
    assert found == [before + 3] * 2
    assert standing() == before
