"""What the tests of several parts do to a disk: kill at each sync, and let one fail."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.powercut.disk import Disk, Killed


def new_disk(folder: Path) -> Disk:
    """An empty folder, made here, that is on a disk which forgets."""
    folder.mkdir()
    return Disk(folder)


def killing(at: int) -> Callable[[int], None]:
    """For `at_sync`: the process is killed before this one."""

    def ask(number: int) -> None:
        if number == at:
            raise Killed

    return ask


def failing(at: int, code: int) -> Callable[[int], None]:
    """For `at_sync`: this one fails with that error."""

    def ask(number: int) -> None:
        if number == at:
            raise OSError(code, os.strerror(code))

    return ask


def restarts(folder: Path, life: Callable[[Disk], None]) -> Iterator[Disk]:
    """The disk as the next process finds it, after `life` was killed at its first sync, at its
    second one, and so on until it comes to its end."""
    number = 0
    while True:
        number += 1
        disk = new_disk(folder / f"life-{number}")
        disk.at_sync = killing(number)
        with disk:
            life(disk)
        if disk.syncs < number:
            return
        yield disk.restarted(folder / f"next-{number}")
