"""`requirements` in a job file: what is read, what is refused, and what an update makes of it."""

from __future__ import annotations

import pytest

from holdfast.control.jobfile import reading as jobfile
from holdfast.control.jobfile.environment import requirement_files
from holdfast.wire.errors import Usage

JOB = "name: a\ncommand: python a.py\nbundle: .\nrequirements: "


@pytest.mark.parametrize(
    ("text", "lines", "files"),
    [
        ("requirements.txt", ("-r requirements.txt",), ["requirements.txt"]),
        ("deps/gpu.txt", ("-r deps/gpu.txt",), ["deps/gpu.txt"]),
        ("[numpy==2.1, einops]", ("numpy==2.1", "einops"), []),
        ("[--no-index, -r a.txt, ./own.whl]", ("--no-index", "-r a.txt", "./own.whl"), ["a.txt"]),
    ],
)
def test_requirements_are_read_and_written_back(
    text: str, lines: tuple[str, ...], files: list[str]
) -> None:
    spec = jobfile.parse(JOB + text, "job.yaml")
    assert spec.requirements == lines and requirement_files(spec) == files
    assert jobfile.parse(jobfile.dump(spec), "job.yaml") == spec


@pytest.mark.parametrize(
    ("text", "said", "fix"),
    [
        ("../requirements.txt", "file in the bundle", ""),
        ("/etc/requirements.txt", "file in the bundle", ""),
        ("[]", "a list of 1 to", "requirements: requirements.txt"),
        ("[-e ./package]", "a folder without -e", "- ./package"),
        ("['']", "one line", ""),
        ("{numpy: 1}", "file in the bundle, or a list", ""),
    ],
)
def test_what_cannot_be_requirements_is_refused(text: str, said: str, fix: str) -> None:
    with pytest.raises(Usage) as refused:
        jobfile.parse(JOB + text, "job.yaml")
    assert "line 4" in refused.value.what and said in refused.value.what
    assert fix in refused.value.fix
