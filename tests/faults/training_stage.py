"""The stage of `members_stage` for trainings with torch: its workers are forked, not started."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.storage import Part, open_store
from holdfast.storage.manifests import Manifest, write_manifest
from tests.faults.members_stage import JOB, ROOT, Stage
from tests.servers import forking
from tests.servers.forking import Forked

WAIT_S = 600.0  # eight workers with torch on two busy cores


class Host:
    """Forks workers that carry out the `scenario` of a module. All hosts of a test process share
    the process that has imported torch."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._forked: list[Forked] = []

    def fork(
        self, environment: Mapping[str, str], output: Path, options: Mapping[str, Any]
    ) -> Forked:
        with output.open("ab") as file:
            forked = forking.shared("tests.faults.training_host").fork(
                {"scenario": self._module, "options": dict(options)},
                env={**os.environ, **environment},
                cwd=ROOT,
                outputs=(file.fileno(), file.fileno()),
                imports=[self._module],
            )
        # Those that have ended are let go of, with the line on which they said so.
        self._forked = [one for one in self._forked if one.poll() is None] + [forked]
        return forked

    def close(self) -> None:
        for forked in self._forked:
            forked.kill()
            forked.wait(WAIT_S)


class TrainingStage(Stage):
    """Workers of one training. `options` are the scenario's."""

    def __init__(
        self, folder: Path, host: Host, *, lanes: int = 8, more: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(folder, lanes=lanes)
        self._host = host
        self._more = dict(more or {})
        self.options: dict[str, Any] = {}
        self.patience_s = WAIT_S

    def wait(
        self, what: str, condition: Callable[[], object], within_s: float | None = None
    ) -> None:
        super().wait(what, condition, self.patience_s if within_s is None else within_s)

    def spawn(self, command: Sequence[str], environment: Mapping[str, str], output: Path) -> Forked:
        return self._host.fork({**environment, **self._more}, output, self.options)

    def alone(self, name: str = "alone") -> dict[str, Any]:
        """The answer of one process without a cluster."""
        output = self.folder / name
        environment = {"HOLDFAST_LANES": str(self.lanes), **self._more}
        forked = self._host.fork(environment, output, {**self.options, "kills": []})
        assert forked.wait(self.patience_s) == 0, output.read_text()
        (answer,) = said("answer", output)
        return answer

    def train(self, members: Sequence[int]) -> list[dict[str, Any]]:
        """Undisturbed, from the beginning to the end, on these workers; their answers."""
        self.start(*members)
        self.move(members, restore=0)
        return self.answers()

    def commit_parts(self, step: int, shares: Mapping[int, tuple[Part, ...] | None]) -> str:
        """The key of the manifest of these shares."""
        assert self.view is not None
        parts = {number: found for number, found in shares.items() if found is not None}
        return write_manifest(open_store(self.store), Manifest(JOB, step, self.view.number, parts))

    def answers(self) -> list[dict[str, Any]]:
        """Wait for the end, and let everyone go; what the last members say."""
        self.wait("all wait at the end", lambda: all(w.said.get("ending") for w in self._members()))
        found = [said("answer", worker.output)[-1] for worker in self._members()]
        self.end(found[0]["step"])
        return found


def said(kind: str, output: Path) -> list[dict[str, Any]]:
    """What a worker has said of this kind, in order."""
    lines = output.read_text().splitlines()
    return [json.loads(line.removeprefix(f"{kind} ")) for line in lines if line.startswith(kind)]


def consumed(folder: Path) -> list[dict[str, Any]]:
    """What all workers have written of the batches that they computed."""
    return [
        json.loads(line)
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]


@contextlib.contextmanager
def hosted(module: str = "tests.faults.training_scenarios") -> Iterator[Host]:
    host = Host(module)
    try:
        yield host
    finally:
        host.close()
