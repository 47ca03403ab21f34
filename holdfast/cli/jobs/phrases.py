"""Sentences about jobs that several commands say. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.client import texts
from holdfast.wire.causes import cause_of, remark_of
from holdfast.wire.reports import SETTING_METRIC

if TYPE_CHECKING:
    from holdfast.control.decide.facts import JobRecord, WorkerFacts


def step_reached(job: JobRecord, seen: int | None = None) -> int | None:
    """How far a job is known to have come: by a worker that is seen, by its commits, or by its
    failures, which say how far it was. None: nothing is known of any step."""
    steps = [seen] if seen is not None else []
    steps += [job.committed_step] if job.checkpoints else []
    steps += [failure.step for failure in job.failures[-1:] if failure.step]
    return max(steps, default=None)


def step_text(step: int | None, committed: int | None) -> str:
    """`step 120 (not committed; step 100 is)`. `committed`: of the last checkpoint, if there is
    one. What is not committed is lost when all workers are gone. Empty: there was no step."""
    if step is None or (not step and not committed):
        return ""
    if committed is None:
        return f"step {step:,} (not committed: there is no checkpoint)"
    if step > committed:
        return f"step {step:,} (not committed; step {committed:,} is)"
    return f"step {step:,} (committed)"


def reached_text(job: JobRecord, seen: int | None = None) -> str:
    """`at step 120 (committed)`, or `before its first step`."""
    text = step_text(step_reached(job, seen), committed_of(job))
    return f"at {text}" if text else "before its first step"


def committed_of(job: JobRecord) -> int | None:
    return job.committed_step if job.checkpoints else None


def preparing(facts: WorkerFacts, now_s: float | None = None) -> str:
    """`preparing the environment: pip install numpy, since 12s`; empty: it is not, or no more."""
    if not facts.preparing:
        return ""
    return f"{facts.preparing}, since {texts.ago(facts.preparing_since_s, now_s)}"


def cause_rows(reason: str) -> list[tuple[str, str]]:
    """A failed job's last lines: its cause, and what to do about it where that is known."""
    cause = cause_of(reason)
    rows = [
        ("tried", remark_of(reason)),
        ("cause", cause.text),
        ("because", cause.why),
        ("fix", cause.fix),
    ]
    return [(name, text) for name, text in rows if text]


@dataclass(frozen=True, slots=True)
class GivenSetting:
    """`taken`: by an optimizer, or read by the script since; None: nobody can say so yet."""

    name: str
    value: str
    at_step: int
    taken: bool | None

    @property
    def text(self) -> str:
        text = f"{self.name}={self.value}"
        if self.taken:
            return f"{text} (in effect{f' from step {self.at_step:,}' if self.at_step else ''})"
        if self.taken is None:
            return f"{text} (for {f'step {self.at_step:,}' if self.at_step else 'the next step'})"
        return (
            f"{text} (was given, but nothing takes it: no optimizer keeps it, and the script reads "
            "it only at its start, where it is what the job was submitted with; for a new job: "
            "--set)"
        )


def given_settings(
    job: JobRecord, working: Mapping[int, tuple[str, WorkerFacts]]
) -> list[GivenSetting]:
    """The changed settings in the order in which they were given. Of one that another of the same
    name has replaced nobody can say it any more."""
    reported = [facts for _, facts in working.values()]
    found = []
    for place, setting in enumerate(job.settings):
        replaced = any(later.name == setting.name for later in job.settings[place + 1 :])
        values = [
            facts.metrics[f"{SETTING_METRIC}{setting.name}"]
            for facts in reported
            if f"{SETTING_METRIC}{setting.name}" in facts.metrics
            and (facts.step or 0) >= setting.at_step
        ]
        taken = bool(max(values)) if values and not replaced else None
        found.append(GivenSetting(setting.name, setting.value, setting.at_step, taken))
    return found
