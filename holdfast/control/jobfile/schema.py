"""What the table of keys (`jobfile.KEYS`) gives besides the parser: a JSON Schema, with which an
editor completes and checks a job file, and the reference page.

    python -m holdfast.control.jobfile.schema > docs/job-files.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast.control.jobfile.reading import KEYS, REQUIRED
from holdfast.control.jobfile.tree import JobFileKey

_DIALECT: Final = "http://json-schema.org/draft-07/schema#"  # the newest that editors know well


def json_schema() -> dict[str, Any]:
    """The schema of a job file. It takes every file that the parser takes, unless a number stands
    in quotes; what it cannot say (`max` below `min`, a port that is not there) the parser says."""
    return {
        "$schema": _DIALECT,
        "title": "A job file of Holdfast",
        **_mapping(KEYS),
        "required": list(REQUIRED),
    }


def _mapping(keys: Mapping[str, JobFileKey], one_of: tuple[str, ...] = ()) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "object",
        "properties": {name: _schema(key) for name, key in keys.items()},
        "additionalProperties": False,
    }
    if one_of:
        found["oneOf"] = [{"required": [name]} for name in one_of]
    return found


def _schema(key: JobFileKey) -> dict[str, Any]:
    """Of one key; editors show the description."""
    said = {"description": f"{key.means} Default: {key.default}."}
    if not key.keys:
        return {**said, **key.schema}
    below = _mapping(key.keys, key.one_of)
    return {**said, "anyOf": [dict(key.schema), below]} if key.schema else {**said, **below}


# --- the page -----------------------------------------------------------------------------------

_HEAD: Final = """\
# Job files
A job file is YAML: a `name`, a `command`, and whatever else differs from the default.
`holdfast submit JOB.YAML` reads it, `holdfast update JOB.YAML` gives it to a job that serves. A key
that is not known, or is there twice, is refused with its line. This page is made from the table
that the parser reads by (`python -m holdfast.control.jobfile.schema`).

## A whole one
```yaml
# job.yaml
# yaml-language-server: $schema=job.schema.json
name: counter
command: python counter.py
bundle: .                        # the folder of this file
workers: {min: 1, max: 4}
resources: {cpu: 0.5, memory: 1GiB}
checkpoint: {every: 5m, keep: 3}
settings: {lr: 0.01}
```

## In an editor
The second line above tells editors with the YAML language server (VS Code with the extension *YAML*
by Red Hat, Neovim, Helix, …) which schema the file has: they complete keys, show what each means,
and mark what is wrong. The schema comes from the version of Holdfast that you have:
```sh
holdfast submit --schema > job.schema.json
```
For all job files of a folder at once, without a line in each, VS Code takes it from its settings:
```json
// .vscode/settings.json
{
  "yaml.schemas": {"job.schema.json": ["jobs/*.yaml", "job.yaml"]}
}
```

## Kinds of values
- **duration**: a number with a unit, or several: `500ms`, `90s`, `5m`, `1h30m`, `2d`.
- **size**: `512MiB`, `4GiB`, `20GB`. A number without a unit is refused, here and for durations.
- **name**: a letter or digit, then letters, digits, dots, dashes and underscores.
- **port**: the name of one of `ports`, or a number.

## Keys
| key | type | default | meaning |
|---|---|---|---|
"""


def page() -> str:
    """`docs/job-files.md`."""
    lines = [_row(name, key, link=True) for name, key in KEYS.items()]
    return _HEAD + "\n".join(lines) + "\n" + "".join(_sections())


def _sections() -> Iterator[str]:
    for name, key in KEYS.items():
        example = f"For example `{key.example}`.\n"
        yield f"\n### {name}\n{key.means}\n{example}"
        if key.one_of:
            yield f"Exactly one of {', '.join(f'`{one}`' for one in key.one_of)} is there.\n"
        if key.keys:
            yield "\n| key | type | default | meaning | example |\n|---|---|---|---|---|\n"
            for below, one in key.keys.items():
                yield f"{_row(below, one)} `{one.example}` |\n"


def _row(name: str, key: JobFileKey, *, link: bool = False) -> str:
    shown = f"[`{name}`](#{name})" if link else f"`{name}`"
    return f"| {shown} | {key.kind} | {key.default} | {key.means} |"


if __name__ == "__main__":
    sys.stdout.write(page())
