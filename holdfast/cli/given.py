"""Settings that were changed while a job runs: given, and whether anything has taken them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.wire.reports import SETTING_METRIC

if TYPE_CHECKING:
    from holdfast.control.decide.facts import Job
    from holdfast.wire.reports import WorkerFacts


@dataclass(frozen=True, slots=True)
class Given:
    """`taken`: by an optimizer, or read by the script since; None: nobody can say so yet."""

    name: str
    value: str
    at_step: int
    taken: bool | None

    @property
    def text(self) -> str:
        said = f"{self.name}={self.value}"
        if self.taken:
            return f"{said} (in effect{f' from step {self.at_step:,}' if self.at_step else ''})"
        if self.taken is None:
            return f"{said} (for {f'step {self.at_step:,}' if self.at_step else 'the next step'})"
        return (
            f"{said} (was given, but nothing takes it: no optimizer keeps it, and the script reads "
            "it only at its start, where it is what the job was submitted with; for a new job: "
            "--set)"
        )


def given_settings(job: Job, working: Mapping[int, tuple[str, WorkerFacts]]) -> list[Given]:
    """The changed settings in the order in which they were given. Of one that another of the same
    name has replaced nobody can say it any more."""
    told = [facts for _, facts in working.values()]
    found = []
    for place, setting in enumerate(job.settings):
        replaced = any(later.name == setting.name for later in job.settings[place + 1 :])
        said = [
            facts.metrics[f"{SETTING_METRIC}{setting.name}"]
            for facts in told
            if f"{SETTING_METRIC}{setting.name}" in facts.metrics
            and (facts.step or 0) >= setting.at_step
        ]
        taken = bool(max(said)) if said and not replaced else None
        found.append(Given(setting.name, setting.value, setting.at_step, taken))
    return found
