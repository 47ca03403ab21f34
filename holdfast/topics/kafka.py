"""confluent-kafka as we use it: loaded when it is needed, quiet, and never used after a fork."""

from __future__ import annotations

import ctypes
import logging
import os
import weakref
from types import ModuleType
from typing import Any, ClassVar, Final

from holdfast.system.extras import require_extra
from holdfast.wire.errors import Usage

# A broker that was away is met again within this.
RECONNECT_MS_MAX: Final = 1_000
# How long a topic may be unknown: Kafka answers before all its brokers know of a new one.
TOPIC_KNOWN_S: Final = 5.0
# What one wait inside librdkafka takes at most: it hears no Ctrl-C meanwhile.
WAIT_S: Final = 0.1
# How long an answer of the cluster may take, where nothing else is said.
ANSWER_S: Final = 30.0

_log = logging.getLogger(__name__)


def confluent() -> ModuleType:
    return require_extra("confluent_kafka", "topics")


def confluent_admin() -> ModuleType:
    return require_extra("confluent_kafka.admin", "topics")


class _QuietLog:
    """librdkafka's own log. It writes of every attempt to connect; what matters comes to us as an
    error, and is told to whoever waits."""

    def log(self, _level: int, text: str, *given: object) -> None:
        _log.debug(text, *given)


def common_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """What every client of ours is set to, and what is asked for."""
    return {
        "client.id": "holdfast",
        "logger": _QuietLog(),
        "log.connection.close": False,
        "reconnect.backoff.max.ms": RECONNECT_MS_MAX,
        **settings,
    }


def opened(kind: str, settings: dict[str, Any]) -> Any:
    """A client of librdkafka; `Usage` in its own words if it does not take a setting."""
    module = confluent()
    try:
        return getattr(module, kind)(common_settings(settings))
    except (module.KafkaException, TypeError, ValueError) as error:
        raise Usage(f"a {kind.lower()} cannot be opened", why=str(error)) from error


class ForkGuard:
    """Who opened a handle of librdkafka. Its threads are not in a forked process: there, calls
    would wait for them for ever, and so would the handle's end."""

    _all: ClassVar[weakref.WeakSet[ForkGuard]] = weakref.WeakSet()

    def __init__(self, what: str, handle: object) -> None:
        self._what = what
        self._handle: object | None = handle
        self._pid = os.getpid()
        self._all.add(self)

    def is_ours(self) -> bool:
        """Whether this is the process that opened it."""
        return os.getpid() == self._pid

    def check(self) -> None:
        """Refuse what a forked process asks."""
        if not self.is_ours():
            raise Usage(
                f"the {self._what} was opened before this process was forked",
                why="its threads and connections are the parent's",
                fix="call topics.connect() after the fork, in the process that uses it",
            )

    def release(self) -> None:
        """It was closed: nothing is left to guard."""
        self._handle = None

    @classmethod
    def keep_all(cls) -> None:
        """In a forked process: handles are not destroyed, which would wait for ever."""
        for guard in list(cls._all):
            if guard._handle is not None:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(guard._handle))


os.register_at_fork(after_in_child=ForkGuard.keep_all)
