"""Having a broker of topics started, once something uses them.

Every coordinator follows the record of topics (`cluster.topics`). One in the folder where the
cluster was made gives the broker an address, writes it into the record, and says in the folder that
the broker is wanted: the supervisor starts it, keeps it alive, and `holdfast down` ends it.
"""

from __future__ import annotations

import threading
from dataclasses import asdict, replace
from typing import Final

from holdfast.cluster import Cluster
from holdfast.cluster import topics as records
from holdfast.cluster.topics import TopicsRecord
from holdfast.coordination import Session, Versioned
from holdfast.coordination.address import TRUSTED
from holdfast.supervise import wanted
from holdfast.system import logs
from holdfast.system.listening import is_loopback
from holdfast.system.tasks import OwnedThread, start_thread
from holdfast.topics import hosting
from holdfast.wire.errors import HoldfastError

log = logs.get(__name__)

# Somebody else starts or ends something in the folder, or the plane is away.
_AGAIN_S: Final = 0.2
# Something is wrong that a person may mend.
_FAILED_AGAIN_S: Final = 10.0


class TopicsKeeper:
    """Whoever makes it enters it; leaving it waits for its thread. The broker goes on."""

    def __init__(self, cluster: Cluster, session: Session) -> None:
        self._cluster = cluster
        self._session = session
        self._wake = threading.Event()
        self._ended = False
        self._found: TopicsRecord | None = None
        self._thread: OwnedThread | None = None

    def __enter__(self) -> None:
        if self._cluster.is_home:
            self._follow = records.config(self._session).watch(self._on_config)
            self._thread = start_thread(self._run, "topics-keeper")

    def __exit__(self, *exc: object) -> None:
        if self._thread is not None:
            self._ended = True
            self._wake.set()
            self._thread.join()
            self._follow.close()

    # --- private --------------------------------------------------------------------------------

    def _on_config(self, versioned: Versioned) -> None:
        self._found = records.record_from(versioned.value)
        self._wake.set()

    def _run(self) -> None:
        pause_s: float | None = None
        while True:
            self._wake.wait(pause_s)
            self._wake.clear()
            if self._ended:
                return
            try:
                pause_s = None if self._keep(self._found) else _AGAIN_S
            except (OSError, HoldfastError) as error:
                log.warning("the broker of topics cannot be started", reason=str(error))
                pause_s = _FAILED_AGAIN_S

    def _keep(self, found: TopicsRecord | None) -> bool:
        """See to it that there is a broker, if one is wanted. False: it has to be tried again."""
        if found is None or not found.embedded:
            return True
        folder = self._cluster.folder
        with wanted.alone(folder, waits=False) as ours:
            if not ours:
                return False
            if wanted.is_down(folder):
                return True
            access = self._cluster.access()
            assert access is not None, "a cluster has a secret where it was made"
            address = self._placed(found).parsed
            kept = hosting.keep(
                folder, address.servers[0], access.secret, encrypts=address.encrypts
            )
        if not kept:
            log.warning("topics are wanted, and no supervisor keeps a broker here")
        return True

    def _placed(self, found: TopicsRecord) -> TopicsRecord:
        """The record with an address at which our broker listens, or can."""
        listen = found.parsed.servers[0] if found.address else ""
        if listen and (hosting.lives(self._cluster.folder) or hosting.is_free(listen)):
            return found
        host = self._cluster.listen
        port = hosting.free_port(host)
        listen = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        embedded = self._cluster.embedded
        trusted = embedded is not None and embedded.network == TRUSTED
        encrypts = not is_loopback(host) and not trusted
        made = hosting.address_at(listen, encrypts=encrypts).format()
        before = asdict(found)

        def place(value: object) -> object:
            # Another coordinator here may have placed it first.
            return asdict(replace(found, address=made)) if value == before else value

        placed = records.record_from(records.config(self._session).update(place).value)
        assert placed is not None
        return placed
