"""Contenders as processes of their own, so that they can be killed and paused.

`Actor` is the test's side: it sends a command as a line of JSON, and reads the answer. The
commands are the methods of `_Setup`, in `__main__` of this module.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

from holdfast.coordination import (
    AcquiredLock,
    Config,
    DoubleBarrier,
    Election,
    Leadership,
    Lock,
    Member,
    Membership,
    Queue,
    connect,
)
from holdfast.wire.errors import HoldfastError, RetryError


class Failed(Exception):
    """The command raised in the actor; `kind` is the name of its error."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class Actor:
    """A process with a session of its own."""

    def __init__(self, address: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.contract.actors", address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, command: str, *arguments: Any) -> None:
        """Give a command without waiting for its end."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([command, *arguments]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """The answer to the oldest command that has none yet; raises what it raised."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"actor {self.pid} ended with {self._process.wait()}"
        kind, value = json.loads(line)
        if kind:
            raise Failed(kind, value)
        return value

    def do(self, command: str, *arguments: Any) -> Any:
        self.send(command, *arguments)
        return self.answer()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()


class _Sampler(threading.Thread):
    """Asks `acting` without end: when was it first true, and when was it last asked and true?"""

    def __init__(self, leadership: Leadership) -> None:
        super().__init__(daemon=True)
        self._leadership = leadership
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.start()

    def run(self) -> None:
        while True:
            before_s = time.clock_gettime(time.CLOCK_MONOTONIC)
            if self._leadership.acting:
                if self.first_s is None:
                    self.first_s = time.clock_gettime(time.CLOCK_MONOTONIC)
                self.last_s = before_s
            time.sleep(0.001)  # pause: between two looks of one that acts all the time


class _Setup:
    """What an actor can do."""

    def __init__(self, address: str) -> None:
        self._session = connect(address)
        self._leadership: Leadership | None = None
        self._election: Election | None = None
        self._sampler: _Sampler | None = None
        self._held: AcquiredLock | None = None
        self._member: Member | None = None
        self._barrier: DoubleBarrier | None = None

    def session_id(self) -> int:
        return self._session.session_id

    def campaign(self, path: str, name: str) -> int:
        self._election = Election(self._session, path, name)
        self._leadership = self._election.campaign()
        self._sampler = _Sampler(self._leadership)
        return self._leadership.term

    def acting(self) -> bool:
        assert self._leadership is not None
        return self._leadership.acting

    def lost(self) -> bool:
        assert self._leadership is not None
        return self._leadership.lost

    def acted(self) -> list[float | None]:
        """From when to when this actor was seen acting."""
        assert self._sampler is not None
        return [self._sampler.first_s, self._sampler.last_s]

    def commit(self, path: str, text: str) -> None:
        assert self._leadership is not None and self._election is not None
        self._election.as_leader(self._leadership.term).replace(path, text.encode()).commit()

    def acquire(self, name: str) -> int:
        self._held = Lock(self._session, name, f"actor {os.getpid()}").acquire()
        return self._held.token

    def check_lock(self) -> None:
        assert self._held is not None
        self._held.check()

    def work(self, name: str, log: str, rounds: int) -> int:
        """Enter and leave a locked room, saying so in a file that all share; rounds done."""
        lock = Lock(self._session, name, f"actor {os.getpid()}")
        with Path(log).open("a", buffering=1) as out:
            for _ in range(rounds):
                with lock.holding() as held:
                    held.check()
                    out.write(f"enter {held.token} {os.getpid()}\n")
                    time.sleep(0.002)  # pause: somebody else would come in meanwhile
                    out.write(f"leave {held.token} {os.getpid()}\n")
        return rounds

    def join(self, path: str, name: str, data: Any) -> None:
        self._member = Membership(self._session, path).join(name, data)

    def show(self, data: Any) -> None:
        assert self._member is not None
        self._member.update(data)

    def go(self) -> None:
        assert self._member is not None
        self._member.leave()

    def count_up(self, path: str, times: int) -> None:
        config = Config(self._session, path)
        for _ in range(times):
            config.update(lambda value: {"n": (value or {"n": 0})["n"] + 1})

    def produce(self, path: str, capacity: int, names: list[str]) -> None:
        queue = Queue(self._session, path, capacity)
        for name in names:
            queue.put(name.encode(), timeout_s=None)

    def consume(self, path: str, capacity: int, log: str) -> int:
        """Take and acknowledge until an item says stop; what was acknowledged goes to a file."""
        queue = Queue(self._session, path, capacity)
        done = 0
        with Path(log).open("a", buffering=1) as out:
            while True:
                item = queue.take()
                if item.value == b"stop":
                    item.ack()
                    return done
                try:
                    item.ack()
                except HoldfastError as error:
                    if isinstance(error, RetryError):
                        raise
                    continue
                out.write(item.value.decode() + "\n")
                done += 1

    def take(self, path: str, capacity: int) -> str:
        return Queue(self._session, path, capacity).take().value.decode()

    def enter(self, path: str, count: int) -> None:
        self._barrier = DoubleBarrier(self._session, path, count)
        self._barrier.enter()

    def leave(self) -> None:
        assert self._barrier is not None
        self._barrier.leave()


def _main() -> None:
    stage = _Setup(sys.argv[1])
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        try:
            answer: list[Any] = ["", getattr(stage, command)(*arguments)]
        except HoldfastError as error:
            answer = [type(error).__name__, str(error)]
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main()
