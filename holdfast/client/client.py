"""A cluster, for Python programs: the verbs of the command line as methods.

    with Client() as client:
        job = client.submit("train.py", workers=2)
        job.result()
        service = client.serve("digits", replicas=2)
        service.wait_ready()
        service.predict({"x": [[0.1, 0.2]]})

`holdfast submit`, `jobs`, `scale`, `serve`, `rollout`, `predict` and the others call this.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Self, TypeVar, Unpack

from holdfast.client import opening, scripts, serving, submitting
from holdfast.client.absence import Progress
from holdfast.client.acting import check_no_service
from holdfast.client.futures import Futures, closed
from holdfast.client.jobs import Job
from holdfast.client.opening import Note, Opened
from holdfast.client.predicting import Gateways
from holdfast.client.services import Service
from holdfast.wire import logs
from holdfast.wire.errors import Missing, Usage

if TYPE_CHECKING:
    from holdfast.client.submitting import Source
    from holdfast.models.records import Model

# Calls of one client at a time: predictions as futures, verbs of an async client. A machine that
# sends more has several processes.
CLIENT_THREADS_MAX: Final = 32

P = ParamSpec("P")
T = TypeVar("T")
_log = logs.get(__name__)
_THREADS: Final = "holdfast-client"


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A model. `newest`: the number of its last version; `aliases`: which version each names."""

    name: str
    newest: int
    aliases: Mapping[str, int]


class Client:
    """A connection to a cluster, until `close` or the end of its `with` block.

    `cluster`: its folder; None: HOLDFAST_CLUSTER, else `.holdfast` here or above, else at home.
    `reads`: if it is down, look at what it has left (`down` says so); otherwise `Unavailable`.
    `note` is told remarks for people. May be used by any thread, and by a notebook; a process that
    forks makes one after the fork.
    """

    def __init__(
        self,
        cluster: str | os.PathLike[str] | None = None,
        *,
        reads: bool = False,
        note: Note | None = None,
    ) -> None:
        self.note: Note = _remark if note is None else note
        self.futures = Futures()
        self.gateways = Gateways()
        self.threads = Threads()
        self._stack = ExitStack()
        self._closing = threading.Lock()
        self._pid = os.getpid()
        self._found: Opened | None = self._stack.enter_context(
            opening.opened(_folder(cluster), reads=reads, note=self.note)
        )

    def close(self) -> None:
        """End what it has begun; what is waited for ends with `Cancelled`. Jobs and services go on.
        May be called twice."""
        with self._closing:
            self._found = None
            self.futures.close()
            self.gateways.close()
            self.threads.close()
            self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        where = "closed" if self._found is None else self._found.cluster.folder
        return f"<Client {where}>"

    @property
    def found(self) -> Opened:
        """The cluster, connected: for what this class has no verb for."""
        found = self._found
        if found is None:
            raise closed()
        if os.getpid() != self._pid:
            raise Usage(
                "this client was made before the process forked",
                why="its connection and its threads stayed with the parent",
                fix="make one in the child: with Client() as client: ...",
            )
        opening.check_up(found)
        return found

    @property
    def down(self) -> bool:
        """Whether the cluster does not run, and this is what it has left."""
        return self.found.down

    # --- jobs -----------------------------------------------------------------------------------

    def submit(
        self,
        source: Source,
        *arguments: object,
        name: str | None = None,
        workers: int | None = None,
        queue: str | None = None,
        priority: int | None = None,
        settings: Mapping[str, Any] | None = None,
        bundle: str | None = None,
        lanes: int | None = None,
        cpu: float | None = None,
        memory: str | None = None,
        gpu: int | None = None,
        disk: str | None = None,
        checkpoint_every: str | None = None,
        mode: str | None = None,
    ) -> Job:
        """Submit a job: its code is pushed and pinned, and it starts when there is room.

        `source`: a script (`train.py`, with its arguments; its folder is its code), a job file, a
        mapping with the keys of one, or a `JobSpec`. `workers`: so many, of a file within what it
        allows. The keywords from `lanes` on are for scripts, and mean what they mean to `holdfast
        run`; a file has keys for them. `Conflict`: there is a job of that name.
        """
        changes = submitting.Changes(name, queue, priority, settings, bundle)
        of_script = {
            "lanes": lanes,
            "cpu": cpu,
            "memory": memory,
            "gpu": gpu,
            "disk": disk,
            "checkpoint_every": checkpoint_every,
            "mode": mode,
        }
        if isinstance(source, str | os.PathLike) and Path(source).suffix == ".py":
            draft = submitting.draft_of_script(source, arguments, workers, changes, of_script)
        else:
            _check_of_script(arguments, of_script)
            draft = submitting.draft_of(source, workers, changes)
        return self.submit_draft(draft)

    def submit_draft(self, draft: submitting.Draft) -> Job:
        """`submit`, for whoever has read the file himself."""
        if remark := scripts.other_lanes(draft.spec, draft.folder):
            self.note(remark)
        job, submission = submitting.submit(self.found, draft)
        return Job(self, job, submission)

    def update(self, source: Source, *, name: str | None = None, bundle: str | None = None) -> Job:
        """Give a job that serves what its file says now: each replica is replaced when a new one is
        ready. `Refused`: what cannot be changed."""
        changes = submitting.Changes(name=name, bundle=bundle)
        return self.update_draft(submitting.draft_of(source, None, changes))

    def update_draft(self, draft: submitting.Draft) -> Job:
        """`update`, for whoever has read the file himself."""
        job, submission = submitting.update(self.found, draft)
        return Job(self, job, submission)

    def job(self, name: str) -> Job:
        """The job of this name. `Missing` names the nearest one; `Refused`: it names a service."""
        try:
            return Job(self, self.found.job(name))
        except Missing:
            check_no_service(self.found, name)
            raise

    def jobs(self) -> dict[str, Job]:
        """All jobs, by name, also those that have ended and were not removed."""
        return {name: Job(self, job) for name, job in sorted(self.found.plane.jobs().items())}

    # --- services -------------------------------------------------------------------------------

    def serve(
        self,
        model: str,
        *,
        name: str | None = None,
        replicas: int | None = None,
        key: bool = False,
        gateway: str | None = None,
        region: str = "",
        gateways: int | None = None,
        progress: Progress | None = None,
        **options: Unpack[serving.ServeOptions],
    ) -> Service:
        """Serve a model (`NAME`, `NAME@ALIAS`, `NAME@3`), or change a service of that name in
        place: what is not given stays. A conductor and a gateway are started on this machine if the
        cluster has none; `Service.wait_ready` waits for the rest.

        `key`: requests need one, see `Service.key`. `options` are those of `holdfast serve`, with
        underscores: `canary="5,25,50"`, `hold="30s"`, `timeout=10`, ...; `--min` and `--max` are
        `least` and `most`.
        """
        wishes = serving.wishes_of(replicas, options)
        asked = serving.Asked(model, name, wishes, key, gateway, region, gateways)
        return self.ensure_served(asked, progress=progress)

    def ensure_served(self, asked: serving.Asked, *, progress: Progress | None = None) -> Service:
        """`serve`, for whoever has read the options himself."""
        served = serving.serve(self.found, asked, self.note, progress)
        return Service(self, served.name, served)

    def service(self, name: str) -> Service:
        """The service of this name. `Missing` names the nearest one."""
        self.found.service(name)
        return Service(self, name)

    def services(self) -> dict[str, Service]:
        """All services, by name."""
        return {name: Service(self, name) for name in sorted(self.found.services().services())}

    def models(self) -> dict[str, PublishedModel]:
        """What is published, by name."""
        from holdfast.models.catalogue import Catalogue

        catalogue = Catalogue(self.found.session)
        known: dict[str, Model] = catalogue.models()
        return {
            name: PublishedModel(
                name,
                model.newest,
                {alias: held.version for alias, held in catalogue.aliases(name).items()},
            )
            for name, model in known.items()
        }


class Threads:
    """The threads of a client's predictions and of its async form: started when they are needed,
    and ended by `close`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False

    def submit(self, call: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> Future[T]:
        """Call it on one of them."""
        with self._lock:
            if self._closed:
                raise closed()
            if self._pool is None:
                self._pool = ThreadPoolExecutor(CLIENT_THREADS_MAX, _THREADS)
            return self._pool.submit(call, *arguments, **keywords)

    def close(self) -> None:
        """Begin nothing more, and wait for what is under way. May be called twice."""
        with self._lock:
            self._closed = True
            pool = self._pool
        if pool is not None:
            # One of them may be who closes: it does not wait for itself.
            within = threading.current_thread().name.startswith(_THREADS)
            pool.shutdown(wait=not within, cancel_futures=True)


def _remark(words: str) -> None:
    _log.info(words)


def _folder(cluster: str | os.PathLike[str] | None) -> Path | None:
    if isinstance(cluster, str) and "://" in cluster:
        raise Usage(
            f"a client needs the folder of a cluster, not the address {cluster}",
            why="in the folder are the cluster's addresses and who this machine is to it",
            fix="holdfast join makes one on this machine; then: Client(folder)",
        )
    return None if cluster is None else Path(cluster)


def _check_of_script(arguments: tuple[object, ...], given: Mapping[str, object]) -> None:
    """`Usage`, if a job file is given what belongs into it."""
    said = [name for name, value in given.items() if value is not None]
    said += ["arguments"] if arguments else []
    if said:
        raise Usage(
            f"{', '.join(said)} cannot be given beside a job file",
            why="they are for scripts: a job file has keys for them",
            fix="write it into the file: docs/job-files.md has all keys",
        )
