"""Having a process started in the cluster's folder, once a record in the plane asks for it.

Every coordinator follows the record. One in the folder where the cluster was made says in the
folder that the process is wanted: the supervisor starts it and keeps it alive, `holdfast down` ends
it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from holdfast.cluster import Cluster
from holdfast.coordination import Config, Versioned
from holdfast.supervise import wanted
from holdfast.system import logs
from holdfast.system.tasks import OwnedThread, start_thread
from holdfast.wire.errors import HoldfastError

log = logs.get(__name__)

# Somebody else starts or ends something in the folder, or the plane is away.
_AGAIN_S: Final = 0.2
# Something is wrong that a person may mend.
_FAILED_AGAIN_S: Final = 10.0


class ProcessKeeper:
    """Whoever makes it enters it; leaving it waits for its thread. The process goes on.

    `keep` is given what the record holds (never None), while nobody else starts or ends something
    in the folder; it says whether a supervisor keeps the process. `wants`: whether this record asks
    for a process of the cluster's own."""

    def __init__(
        self,
        cluster: Cluster,
        config: Config,
        what: str,
        wants: Callable[[Any], bool],
        keep: Callable[[Any], bool],
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._what = what
        self._wants = wants
        self._keep = keep
        self._wake = threading.Event()
        self._ended = False
        self._value: Any = None
        self._thread: OwnedThread | None = None

    def __enter__(self) -> None:
        if self._cluster.is_home:
            self._follow = self._config.watch(self._on_config)
            self._thread = start_thread(self._run, f"{self._what}-keeper")

    def __exit__(self, *exc: object) -> None:
        if self._thread is not None:
            self._ended = True
            self._wake.set()
            self._thread.join()
            self._follow.close()

    # --- private --------------------------------------------------------------------------------

    def _on_config(self, versioned: Versioned) -> None:
        self._value = versioned.value
        self._wake.set()

    def _run(self) -> None:
        pause_s: float | None = None
        while True:
            self._wake.wait(pause_s)
            self._wake.clear()
            if self._ended:
                return
            try:
                pause_s = None if self._see_to_it(self._value) else _AGAIN_S
            except (OSError, HoldfastError) as error:
                log.warning(f"{self._what}: what is wanted cannot be started", reason=str(error))
                pause_s = _FAILED_AGAIN_S

    def _see_to_it(self, value: Any) -> bool:
        """See to it that there is a process, if one is wanted. False: it has to be tried again."""
        if value is None or not self._wants(value):
            return True
        with wanted.alone(self._cluster.folder, waits=False) as ours:
            if not ours:
                return False
            if wanted.is_down(self._cluster.folder):
                return True
            kept = self._keep(value)
        if not kept:
            log.warning(f"{self._what} are wanted, and no supervisor keeps a process for them here")
        return True
