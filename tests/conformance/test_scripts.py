"""Every script, alone and on three workers. `make proof-scripts` runs them with kills as well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.running import SCRIPTS, Script, alone, complaint, on_workers
from tests.faults.training_stage import Host, hosted


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with hosted("tests.conformance.host") as found:
        yield found


@pytest.mark.parametrize("name", sorted(path.stem for path in SCRIPTS.glob("*.py")))
def test_a_script_ends_with_one_digest_or_is_refused_with_a_sentence(
    name: str, host: Host, tmp_path: Path
) -> None:
    script = Script.read(SCRIPTS / f"{name}.py")
    right = alone(script, host, tmp_path / "alone")
    assert not complaint(script, right, right, "alone")
    found = on_workers(script, host, tmp_path / "three", 3)
    assert not complaint(script, right, found, "on three workers")
