"""From a job file, a script or a mapping, and a folder of code, to a job of the cluster."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from holdfast.wire.errors import Missing, Usage
from holdfast.wire.limits import JOB_PRIORITY_MAX

if TYPE_CHECKING:
    from holdfast.client.opening import Opened
    from holdfast.control.decide.facts import JobRecord
    from holdfast.control.decide.spec import JobSpec
    from holdfast.control.store.bundles import Pinned

    Source = str | os.PathLike[str] | Mapping[str, Any] | JobSpec


@dataclass(frozen=True)
class Submission:
    """What was submitted. `pinned`: its code, if it has any; `folder`: what `bundle` was relative
    to."""

    spec: JobSpec
    pinned: Pinned | None
    folder: Path


@dataclass(frozen=True)
class Changes:
    """What is to be other than a file says; None: as it says."""

    name: str | None = None
    queue: str | None = None
    priority: int | None = None
    settings: Mapping[str, Any] | None = None
    bundle: str | None = None


@dataclass(frozen=True)
class JobDraft:
    """A job before its code is pinned."""

    spec: JobSpec
    folder: Path
    workers: int | None = None


def draft_of(source: Source, workers: int | None, changes: Changes) -> JobDraft:
    """The job that a file or a mapping describes, with the changes; nothing is asked of a cluster.
    A relative `bundle` of the file is within its folder, one that is given: within this one."""
    spec, folder = _read(source)
    if changes.bundle is not None:
        spec, folder = replace(spec, bundle=changes.bundle), Path.cwd()
    return JobDraft(_changed(spec, changes), folder, _within(spec, workers))


def draft_of_script(
    script: str | os.PathLike[str],
    arguments: tuple[object, ...],
    workers: int | None,
    changes: Changes,
    given: Mapping[str, Any],
) -> JobDraft:
    """The job that `holdfast run SCRIPT` would run: its folder is its code."""
    from holdfast.client import scripts

    path = Path(script).expanduser().absolute()
    if not path.is_file():
        raise Missing(f"there is no script {path}", fix='client.submit("train.py", workers=2)')
    scripts.check_counts(workers, given.get("lanes"))
    every, mode = given.get("checkpoint_every"), given.get("mode")
    wanted = scripts.ScriptRun(
        path,
        tuple(str(word) for word in arguments),
        scripts.name_of(path),
        workers or 1,
        given.get("lanes"),
        checkpoint=None if every is None else scripts.checkpoint_of(every),
        resources=scripts.resources_of(
            given.get("cpu"), given.get("memory"), given.get("gpu") or 0, given.get("disk")
        ),
        mode=None if mode is None else scripts.mode_of(mode),
        script_lanes=scripts.lanes_in(path.read_bytes().decode(errors="replace")),
    )
    bundle, folder = changes.bundle or ".", path.parent if changes.bundle is None else Path.cwd()
    spec = scripts.spec_of(wanted, bundle, scripts.lanes_of(wanted))
    return JobDraft(_changed(spec, changes), folder, wanted.workers)


def submit(found: Opened, draft: JobDraft) -> tuple[JobRecord, Submission]:
    """Push and pin its code, and submit it. `Conflict`: there is a job of that name."""
    submission = _pinned(found, draft)
    return found.plane.submit(submission.spec, draft.workers), submission


def update(found: Opened, draft: JobDraft) -> tuple[JobRecord, Submission]:
    """Let a job that serves have the draft's spec."""
    from holdfast.client.job_actions import check_no_service

    check_no_service(found, draft.spec.name)
    found.job(draft.spec.name)
    submission = _pinned(found, draft)
    return found.plane.update(submission.spec), submission


def _pinned(found: Opened, draft: JobDraft) -> Submission:
    from holdfast.control.jobfile.environment import requirement_files
    from holdfast.control.store.bundles import BundlesInPlane, pin

    spec = draft.spec
    files = requirement_files(spec)
    if not spec.bundle and files:
        raise _not_bundled(files[0], "it has no bundle", "add the line: bundle: .")
    if not spec.bundle:
        return Submission(spec, None, draft.folder)
    names = BundlesInPlane(found.session)
    pinned = pin(spec.bundle, draft.folder, names, found.cluster.blobs())
    members = None if pinned.pushed is None else {str(one.path) for one in pinned.pushed.members}
    for name in files:
        if members is not None and str(PurePosixPath(name)) not in members:
            where = draft.folder / Path(spec.bundle).expanduser()
            raise _not_bundled(
                name, f"it is not among the files of {where}", f"put it into {where}"
            )
    return Submission(replace(spec, bundle=pinned.digest), pinned, draft.folder)


def _not_bundled(name: str, why: str, fix: str) -> Usage:
    return Usage(
        f"{name}, which `requirements` names, does not travel with the job", why=why, fix=fix
    )


def _read(source: Source) -> tuple[JobSpec, Path]:
    from holdfast.control.decide.spec import JobSpec
    from holdfast.control.jobfile import reading as jobfile

    if isinstance(source, JobSpec):
        return source, Path.cwd()
    if isinstance(source, Mapping):
        # JSON is YAML: the keys, the checks and the errors are those of a job file.
        return jobfile.parse(json.dumps(dict(source), indent=1), "the mapping"), Path.cwd()
    file = Path(source).expanduser()
    if not file.is_file():
        raise Missing(
            f"there is no file {source}",
            fix="holdfast submit --help shows what a job file looks like",
        )
    return jobfile.parse(file.read_text(errors="replace"), str(file)), file.absolute().parent


def _changed(spec: JobSpec, changes: Changes) -> JobSpec:
    from holdfast.control.store import layout

    given: dict[str, Any] = {}
    if changes.name is not None:
        given["name"] = layout.check_name("job", changes.name)
    if changes.queue is not None:
        given["queue"] = layout.check_name("queue", changes.queue)
    if changes.priority is not None:
        if abs(changes.priority) > JOB_PRIORITY_MAX:
            raise Usage(
                f"a priority of {changes.priority}",
                why=f"it is from -{JOB_PRIORITY_MAX} to {JOB_PRIORITY_MAX}",
                fix="priority=10",
            )
        given["priority"] = changes.priority
    if changes.settings:
        changed = {name: str(value) for name, value in changes.settings.items()}
        given["settings"] = {**spec.settings, **changed}
    return replace(spec, **given)


def _within(spec: JobSpec, workers: int | None) -> int | None:
    least, most = spec.workers_min, spec.workers_max
    if workers is not None and not least <= workers <= most:
        raise Usage(
            f"job {spec.name} cannot have {workers} workers",
            why=f"its file allows {least} to {most}",
            fix=f"workers={min(max(workers, least), most)}, or other `workers:` in its file",
        )
    return workers
