"""What a run has left behind: what it published, and where its blobs are while they are written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from holdfast.cluster import Cluster
from holdfast.cluster.folder import default_folder
from holdfast.control.decide.facts import Job
from holdfast.coordination import Session
from holdfast.models.catalogue import Catalogue
from holdfast.storage.address import FolderAddress
from holdfast.storage.address import parse as parse_store
from holdfast.storage.folder import drafts_in
from holdfast.wire import logs
from holdfast.wire.errors import HoldfastError

log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class Results:
    """`published`: for people, each a name and where it is. `model`: one of which a version
    can be served; empty: there is none."""

    published: tuple[str, ...] = ()
    model: str = ""


def results_of(cluster: Cluster, session: Session, job: Job) -> Results:
    """What this job published; nothing, if it cannot be asked now."""
    try:
        return _results(cluster, session, job)
    except HoldfastError as error:
        log.warning("what was published cannot be asked now", reason=str(error))
        return Results()


def _results(cluster: Cluster, session: Session, job: Job) -> Results:
    catalogue = Catalogue(session)
    versions = [
        version
        for name in catalogue.models()
        for version in catalogue.versions(name)
        # The same bits, published again, are the version that there was.
        if version.job == job.name
        and (version.published_s >= job.submitted_s or version.step == job.committed_step)
        and not version.retired
    ]
    said = [f"{version.model} version {version.number}" for version in versions]
    above = f"published/{job.name}/"
    said += [
        f"the weights only, as {cluster.store}/{blob.key}"
        for blob in cluster.blobs().list(above)
        if blob.modified_s >= job.submitted_s
    ]
    return Results(tuple(said), versions[-1].model if versions else "")


def given_folder(cluster: Cluster) -> str:
    """The folder that other commands have to be given to find this cluster; empty: they find it."""
    return "" if default_folder() == cluster.folder else str(cluster.folder)


def drafts_of(cluster: Cluster) -> Path | None:
    """Where blobs are while they are written, if the store is a folder."""
    store = parse_store(cluster.store)
    return drafts_in(store.folder) if isinstance(store, FolderAddress) else None
