"""What workers of an agent are told of topics: where they are, and who a worker is there."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cluster import Cluster, topics
from holdfast.cluster.topics import TopicsRecord
from holdfast.coordination import Session, Versioned
from holdfast.coordination.follow import Follow
from holdfast.system import disk, logs
from holdfast.topics import hosting
from holdfast.wire.errors import HoldfastError
from holdfast.wire.worker_messages import TOPICS_NAME, TOPICS_VARIABLE

if TYPE_CHECKING:
    from holdfast.topics import Connection

log = logs.get(__name__)


class WorkerTopics:
    """Follows where the cluster's topics are, and keeps it in the folders of workers: also of those
    that have started before something used topics. Whoever makes it closes it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._found: TopicsRecord | None = None
        self._follow: Follow[Versioned] | None = None
        self._lock = threading.Lock()
        self._folders: set[Path] = set()

    def attach(self, session: Session) -> None:
        """This is the agent's session."""
        self.close()
        self._follow = topics.config(session).watch(self._on_config)

    def environment(self, folder: Path) -> dict[str, str]:
        """For the worker that this folder is made for, with its credentials in it; nothing, where
        nothing uses topics. A worker can do without: it is not kept from starting."""
        with self._lock:
            self._folders.add(folder)
            address = self._equip(folder)
        return {TOPICS_VARIABLE: address} if address else {}

    def connect(self) -> Connection | None:
        """For the agent itself; None: nothing uses topics yet."""
        from holdfast.topics import connect  # noqa: PLC0415 - the Kafka client is loaded when needed

        found = self._found
        if found is None or not found.address:
            return None
        return connect(topics.address(self._cluster, found))

    def close(self) -> None:
        if self._follow is not None:
            self._follow.close()

    def _on_config(self, versioned: Versioned) -> None:
        with self._lock:
            self._found = topics.record_from(versioned.value)
            self._folders = {folder for folder in self._folders if folder.is_dir()}
            for folder in self._folders:
                self._equip(folder)

    def _equip(self, folder: Path) -> str:
        """Write what its worker is to know, and say it; "": nothing is known."""
        found = self._found
        if found is None or not found.address:
            return ""
        try:
            address = topics.for_worker(self._cluster, found, folder)
            _write(folder, address)
        except (HoldfastError, OSError) as error:
            log.warning("a worker is not told where topics are", reason=str(error))
            return ""
        return address


def _write(folder: Path, address: str) -> None:
    """Whole or not at all, and with what it names for the worker's user alone."""
    draft = folder / f"{TOPICS_NAME}.tmp"
    disk.draft(draft, address.encode())
    draft.replace(folder / TOPICS_NAME)
    work = folder / "work"  # belongs to the worker, once it has been handed over
    owner = work.stat() if work.is_dir() else folder.stat()
    if owner.st_uid != os.geteuid():
        for name in (TOPICS_NAME, hosting.PASSWORD_NAME, hosting.TRUST_NAME):
            with suppress(FileNotFoundError):
                os.chown(folder / name, owner.st_uid, owner.st_gid, follow_symlinks=False)
