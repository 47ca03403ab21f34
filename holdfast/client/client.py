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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from holdfast.client import scripts, serving, submitting, subscribing
from holdfast.client.absence import Progress
from holdfast.client.connection import ClusterConnection
from holdfast.client.job_actions import check_no_service
from holdfast.client.jobs import Job
from holdfast.client.services import Service
from holdfast.wire.errors import Missing, Usage

if TYPE_CHECKING:
    from holdfast.client.submitting import Source
    from holdfast.models.records import Model


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A model. `newest`: the number of its last version; `aliases`: which version each names."""

    name: str
    newest: int
    aliases: Mapping[str, int]


class Client(ClusterConnection):
    """A connection to a cluster, until `close` or the end of its `with` block.

    `cluster`: its folder; None: HOLDFAST_CLUSTER, else `.holdfast` here or above, else at home.
    `reads`: if it is down, look at what it has left (`down` says so); otherwise `Unavailable`.
    `note` is told remarks for people. May be used by any thread, and by a notebook; a process that
    forks makes one after the fork.
    """

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

    def submit_draft(self, draft: submitting.JobDraft) -> Job:
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

    def update_draft(self, draft: submitting.JobDraft) -> Job:
        """`update`, for whoever has read the file himself."""
        job, submission = submitting.update(self.found, draft)
        return Job(self, job, submission)

    def subscribe(
        self, topic: str, handler: str, *, group: str, **more: Unpack[subscribing.SubscribeOptions]
    ) -> Job:
        """A function (`FILE.py:FUNCTION`) that is called for each record of a topic, at least once,
        by a job that is kept alive. Of one that is there already, its replicas are replaced. `more`
        are the options of `holdfast subscribe`."""
        draft = subscribing.draft_of(subscribing.SubscribeRequest(topic, handler, group, **more))
        if subscribing.prepare(self.found, draft):
            return self.update_draft(draft)
        return self.submit_draft(draft)

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
        place: what is not given stays. A controller and a gateway are started on this machine if
        the cluster has none; `Service.wait_ready` waits for the rest.

        `key`: requests need one, see `Service.key`. `options` are those of `holdfast serve`, with
        underscores: `canary="5,25,50"`, `hold="30s"`, `timeout=10`, ...; `--min` and `--max` are
        `least` and `most`.
        """
        changes = serving.changes_of(replicas, options)
        request = serving.ServeRequest(model, name, changes, key, gateway, region, gateways)
        return self.ensure_served(request, progress=progress)

    def ensure_served(
        self, request: serving.ServeRequest, *, progress: Progress | None = None
    ) -> Service:
        """`serve`, for whoever has read the options himself."""
        served = serving.serve(self.found, request, self.note, progress)
        return Service(self, served.name, served)

    def service(self, name: str) -> Service:
        """The service of this name. `Missing` names the nearest one."""
        self.found.service(name)
        return Service(self, name)

    def services(self) -> dict[str, Service]:
        """All services, by name."""
        return {name: Service(self, name) for name in sorted(self.found.services().services())}

    def publish(
        self,
        name: str,
        source: str | os.PathLike[str],
        *,
        kind: str | None = None,
        examples: Sequence[Mapping[str, Any]] = (),
        metrics: Mapping[str, float] | None = None,
        alias: str | None = None,
        allow_pickle: bool = False,
    ) -> int:
        """The number of the next version of a model: a file or folder that was trained elsewhere,
        here or at `s3://…`. The same files again are the same version."""
        from holdfast.models import elsewhere
        from holdfast.models.records import check_alias
        from holdfast.models.registry import Registry

        if alias is not None:
            check_alias(alias)
        given = elsewhere.files_of(name, kind, examples, metrics, allow_pickle=allow_pickle)
        blobs = self.found.cluster.blobs()
        registry = Registry(self.found.session, blobs, "a client")
        version = elsewhere.publish_from(registry, blobs, given, source)
        if alias is not None:
            registry.set_alias(name, alias, version.number, why="published by a client")
        return version.number

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


def _check_of_script(arguments: tuple[object, ...], given: Mapping[str, object]) -> None:
    """`Usage`, if a job file is given what belongs into it."""
    named = [name for name, value in given.items() if value is not None]
    named += ["arguments"] if arguments else []
    if named:
        raise Usage(
            f"{', '.join(named)} cannot be given beside a job file",
            why="they are for scripts: a job file has keys for them",
            fix="write it into the file: docs/job-files.md has all keys",
        )
