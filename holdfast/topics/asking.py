"""Asking a cluster whose brokers may die, or be started again, while it answers.

librdkafka itself waits for a broker that is away. But what was under way when a connection broke it
gives up at once, also where that broker is back a second later. Such a question is asked again
here, until its time is over: one that only reads, always; one that changes something, after a look
at what is there now, since it may have been done though its answer was lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from holdfast.system.tasks import ENDS_SOON, start_thread
from holdfast.topics.failures import translate
from holdfast.topics.kafka import ANSWER_S, TOPIC_KNOWN_S, WAIT_S, confluent
from holdfast.wire.errors import TerminalError, TimedOut, Unavailable

T = TypeVar("T")

# A change takes longer than an answer: a cluster may have to find out who decides.
CHANGE_S: Final = 2 * ANSWER_S
# What says that nobody knows whether it was heard, let alone done.
_NO_ANSWER: Final = (Unavailable, TimedOut)


def ask_again(ask: Callable[[float], T], within_s: float = ANSWER_S) -> T:
    """The answer, asked for until somebody gives it. `ask` is told how many seconds are left; what
    it raises then is raised. It must change nothing."""
    until_s = time.monotonic() + within_s
    while True:
        try:
            return ask(max(WAIT_S, until_s - time.monotonic()))
        except _NO_ANSWER:
            if not _may_go_on(until_s):
                raise


def metadata(kafka: Any, topic: str | None, what: str) -> Any:
    """What a client of librdkafka is told of the topic with this whole name (None: of all of them),
    and of the brokers."""

    def ask(left_s: float) -> Any:
        try:
            return _interruptible(lambda: kafka.list_topics(topic, timeout=left_s))
        except confluent().KafkaException as error:
            raise translate(error, what) from error

    return ask_again(ask)


def _interruptible(call: Callable[[], T]) -> T:
    """What it returns or raises. It waits within librdkafka, where no Ctrl-C is heard: so the main
    thread, which hears it, lets another one wait, and leaves that one behind if it has to."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # it is the caller's
            future.set_exception(error)

    start_thread(run, "topics-asking", lasts=ENDS_SOON)
    return future.result()


def change(
    ask: Callable[[float], object], is_done: Callable[[], bool] | None, within_s: float = CHANGE_S
) -> None:
    """Have something changed, once. Where the answer is lost `is_done` looks: what is so already is
    not asked for again. A refusal of what was asked for again stands unless the look says that it
    is done: brokers may know of it later than the one that refuses. None: nothing can be seen, or
    twice is the same as once."""
    until_s = time.monotonic() + within_s
    lost = False
    while True:
        try:
            ask(max(WAIT_S, until_s - time.monotonic()))
        except _NO_ANSWER:
            lost = True
            if is_done is not None and is_done():
                return
            if not _may_go_on(until_s):
                raise
        except TerminalError:
            if lost and is_done is not None and _seen(is_done):
                return
            raise
        else:
            return


def _may_go_on(until_s: float) -> bool:
    """Pause before the next try, if there is time for one."""
    time.sleep(WAIT_S)
    return time.monotonic() < until_s


def _seen(is_done: Callable[[], bool]) -> bool:
    until_s = time.monotonic() + TOPIC_KNOWN_S
    while not is_done():
        if time.monotonic() > until_s:
            return False
        time.sleep(WAIT_S)
    return True
