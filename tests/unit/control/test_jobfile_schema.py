"""The page and the schema of job files are what the parser's own table says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from typer.testing import CliRunner

from holdfast.cli.main import app
from holdfast.control.decide.spec import JobSpec
from holdfast.control.jobfile import reading as jobfile
from holdfast.control.jobfile.schema import json_schema, page
from holdfast.control.jobfile.tree import JobFileKey
from holdfast.wire.errors import Usage
from tests.unit.control.test_jobfile import WHOLE, specs

ROOT = Path(__file__).parents[3]
SCHEMA = json_schema()
CHECK = jsonschema.Draft7Validator(SCHEMA)


def _job_files() -> dict[str, str]:
    """Every job file of README and docs, by page and name."""
    found = {}
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for text in re.findall(r"^```yaml[^\n]*\n(.*?)^```$", path.read_text(), re.M | re.S):
            if re.search(r"^name:", text, re.M) and re.search(r"^command:", text, re.M):
                found[f"{path.name}:{text.splitlines()[0]}"] = text
    return found


JOB_FILES = _job_files()


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)


def test_there_are_job_files_in_the_docs() -> None:
    assert len(JOB_FILES) >= 5


def loaded(text: str) -> Any:
    """As an editor reads it: for YAML 1.2 `on` is a word, for PyYAML (1.1) it is true."""
    found = yaml.safe_load(text)
    return {"on" if key is True else key: value for key, value in found.items()}


@pytest.mark.parametrize("name", JOB_FILES)
def test_a_job_file_of_the_docs_is_taken_by_the_parser_and_by_the_schema(name: str) -> None:
    jobfile.parse(JOB_FILES[name], name)
    CHECK.validate(loaded(JOB_FILES[name]))


def test_a_file_with_every_key_is_taken_by_the_schema() -> None:
    CHECK.validate(loaded(WHOLE))


@settings(max_examples=50, deadline=None)
@given(specs())
def test_what_the_parser_writes_is_taken_by_the_schema(spec: JobSpec) -> None:
    CHECK.validate(loaded(jobfile.dump(spec)))


@pytest.mark.parametrize(
    "added",
    [
        "worker: 3",
        "notify: [ops]",
        "workers: {mni: 3}",
        "workers: 0",
        "resources: {mem: 4GiB}",
        "resources: {memory: 4}",
        "deadline: 90",
        "mode: fast",
        "priority: high",
        "checkpoint: {every: soon}",
        "restart: {failures: 3}",
        "live: {every: 5s}",
        "live: {http: /a, tcp: 80}",
        "live: {http: a}",
        "live: link",
        "ports: {http: 99999}",
        "settings: {lr: [1]}",
        "env: {HOLDFAST_MODE: x}",
        "env: {TMPDIR: x}",
        "secrets: {A: 'b c'}",
    ],
)
def test_what_is_wrong_is_refused_by_the_parser_and_by_the_schema(added: str) -> None:
    text = f"name: a\ncommand: x\n{added}\n"
    with pytest.raises(Usage):
        jobfile.parse(text, "job.yaml")
    assert not CHECK.is_valid(loaded(text))


def _examples(keys: dict[str, JobFileKey] | Any) -> list[str]:
    return [line for key in keys.values() for line in (key.example, *_examples(key.keys))]


@pytest.mark.parametrize("example", sorted(set(_examples(jobfile.KEYS))))
def test_an_example_of_the_page_can_be_written_into_a_job_file(example: str) -> None:
    first = {"name": "name: a", "command": "command: x", "mode": "mode: serve"}
    if example.startswith(("lanes", "on:")):
        del first["mode"]
    first["ports"] = "ports: [http, redis, admin]"
    first[example.partition(":")[0]] = example
    text = "\n".join(first.values())
    jobfile.parse(text, example)
    CHECK.validate(loaded(text))


def test_the_page_is_what_the_table_gives() -> None:
    fix = "python -m holdfast.control.jobfile.schema > docs/job-files.md"
    assert (ROOT / "docs" / "job-files.md").read_text() == page(), fix


def test_the_command_prints_the_schema_without_a_file_or_a_cluster() -> None:
    done = CliRunner().invoke(app, ["submit", "--schema"])
    assert done.exit_code == 0
    assert json.loads(done.stdout) == SCHEMA
