"""Waiting for files."""

from __future__ import annotations

import os
import resource

from holdfast.system.readable import await_readable
from holdfast.train.members.wakeup import Wakeup


def test_a_program_with_a_thousand_open_files_cannot_wait_for_another() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2_048), before[1]))
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(1_100)]
    reading, writing = os.pipe()
    try:
        assert reading > 1_023
        assert await_readable([reading], 0.0) == []
        os.write(writing, b"x")
        assert await_readable([reading]) == [reading]
        wakeup = Wakeup()
        wakeup.set()
        wakeup.wait(60.0)
    finally:
        for file in (*opened, reading, writing):
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_one_whose_other_end_is_gone_is_waited_for() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    assert await_readable([reading]) == [reading]
    os.close(reading)
