"""A session for a process that may be started before its coordination plane answers."""

from __future__ import annotations

import threading

from holdfast.cluster.folder import Cluster
from holdfast.coordination import Session
from holdfast.system import logs
from holdfast.wire.errors import Cancelled, RetryError
from holdfast.wire.limits import RECONNECT_DELAY_S_MAX

log = logs.get(__name__)


def awaited_session(cluster: Cluster, stop: threading.Event) -> Session:
    """A session, as soon as the coordination plane answers; `Cancelled` if `stop` is set first."""
    told = ""
    while not stop.is_set():
        try:
            return cluster.session()
        except RetryError as error:
            if error.what != told:
                log.warning("the coordination plane does not answer yet", reason=str(error))
                told = error.what
            stop.wait(RECONNECT_DELAY_S_MAX)
    raise Cancelled("told to stop before it had a session")
