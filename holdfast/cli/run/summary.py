"""How a run ended, in a few lines, and what it has published.

Of what has succeeded: its last numbers, what it published, and the command that comes next. Of what
has failed: its cause, as the last line, and behind it only what to do about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.cli.jobs import phrases
from holdfast.cli.run import panel
from holdfast.client.texts import many, span
from holdfast.cluster import Cluster
from holdfast.cluster.folder import default_folder
from holdfast.control.decide.facts import JobRecord, Phase
from holdfast.coordination import Session
from holdfast.models.catalogue import Catalogue
from holdfast.storage.address import FolderAddress
from holdfast.storage.address import parse as parse_store
from holdfast.storage.folder import drafts_in
from holdfast.system import logs
from holdfast.wire.causes import cause_of
from holdfast.wire.errors import HoldfastError

log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class Summary:
    """How a run ended. `next_step`: what to do now, if anything. `reason`: what the status says,
    whole. `metrics`: the last that were reported, at `metrics_step`."""

    name: str
    phase: Phase
    reason: str
    step: int
    steps_here: int
    seconds: float
    rate: float | None
    goodput: float | None
    survived: Mapping[str, int]
    checkpoint: str
    checkpoint_step: int | None
    logs: str
    next_step: str
    exit_code: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    metrics_step: int = 0
    published: tuple[str, ...] = ()

    @property
    def cause(self) -> str:
        """Why it failed, in one line; empty: it has not."""
        return cause_of(self.reason).text if self.phase is Phase.FAILED else ""


def summary_lines(summary: Summary) -> list[str]:
    """The end in a few lines, the first as a sentence; the others are `name  value`."""
    lines = [_head(summary)]
    failed = summary.phase is Phase.FAILED
    asked = summary.next_step and summary.exit_code != 1  # as its user did, who knows why
    quiet = failed or summary.phase is Phase.SUCCEEDED or asked
    if summary.reason and not quiet:
        lines.append(f"why  {summary.reason.splitlines()[0]}")
    if summary.metrics and not failed:
        lines.append(_metrics(summary))
    if summary.goodput is not None:
        lines.append(f"goodput  {summary.goodput:.0%} of the time at its usual pace")
    if summary.survived and not failed:
        message = ", ".join(f"{many(count, what)}" for what, count in summary.survived.items())
        lines.append(f"survived  {message}")
    lines += [f"published  {each}" for each in summary.published]
    if summary.checkpoint_step is not None:
        lines.append(f"checkpoint  step {summary.checkpoint_step:,}: {summary.checkpoint}")
    lines.append(f"logs  {summary.logs}")
    if summary.next_step:
        lines.append(f"next  {summary.next_step}")
    if failed:
        lines += [f"{name}  {text}" for name, text in phrases.cause_rows(summary.reason)]
    return lines


def _head(summary: Summary) -> str:
    took = f"in {span(summary.seconds)}" if summary.seconds >= 1 else ""
    rate = f"({panel.number(summary.rate)} steps/s)" if summary.rate else ""
    if summary.phase is Phase.PAUSED:
        ended = "is paused"
    else:
        ended = summary.phase.value if summary.phase.final else "was ended at once"
    step = phrases.step_text(summary.step, summary.checkpoint_step)
    where = f"at {step}" if step else ""
    if not step and summary.phase is not Phase.SUCCEEDED:
        where = "before its first step"
    return " ".join(part for part in (summary.name, ended, where, took, rate) if part)


def _metrics(summary: Summary) -> str:
    """The loss first; said of which step, where that is not the last one."""
    named = sorted(summary.metrics.items(), key=lambda each: each[0] != "loss")
    (name, value), *rest = named
    more = "".join(f", {other} {number:.4g}" for other, number in rest)
    late = f" (step {summary.metrics_step:,})" if summary.metrics_step != summary.step else ""
    return f"{name}  {value:.4g}{more}{late}"


def next_after(model: str, folder: str) -> str:
    """The command that serves what was published, if that can be served. `folder`: where the
    cluster is, if it is not found without being named."""
    if not model:
        return ""
    given = f" --cluster {folder}" if folder else ""
    return f"holdfast up{given} && holdfast serve {model}{given}"


@dataclass(frozen=True, slots=True)
class RunResults:
    """`published`: for people, each a name and where it is. `model`: one of which a version
    can be served; empty: there is none."""

    published: tuple[str, ...] = ()
    model: str = ""


def results_of(cluster: Cluster, session: Session, job: JobRecord) -> RunResults:
    """What this job published; nothing, if it cannot be asked now."""
    try:
        return _results(cluster, session, job)
    except HoldfastError as error:
        log.warning("what was published cannot be asked now", reason=str(error))
        return RunResults()


def _results(cluster: Cluster, session: Session, job: JobRecord) -> RunResults:
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
    published = [f"{version.model} version {version.number}" for version in versions]
    above = f"published/{job.name}/"
    published += [
        f"the weights only, as {cluster.store}/{blob.key}"
        for blob in cluster.blobs().list(above)
        if blob.modified_s >= job.submitted_s
    ]
    return RunResults(tuple(published), versions[-1].model if versions else "")


def given_folder(cluster: Cluster) -> str:
    """The folder that other commands have to be given to find this cluster; empty: they find it."""
    return "" if default_folder() == cluster.folder else str(cluster.folder)


def drafts_of(cluster: Cluster) -> Path | None:
    """Where blobs are while they are written, if the store is a folder."""
    store = parse_store(cluster.store)
    return drafts_in(store.folder) if isinstance(store, FolderAddress) else None
