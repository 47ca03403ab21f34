"""Every test here runs over each back end; each is started once."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

import pytest

from holdfast.features.online.store import OnlineStore
from tests.conftest import require_part, require_service
from tests.contract.features.backends import Backend, BackendKind

_MODULES: Final = ("valkey_backend", "cassandra_backend")
_numbers = itertools.count()


def _kinds() -> tuple[BackendKind, ...]:
    found: list[BackendKind] = []
    for name in _MODULES:
        module = f"{__package__}.{name}"
        if importlib.util.find_spec(module) is not None:
            found += importlib.import_module(module).KINDS
    return tuple(found)


KINDS: Final = {kind.name: kind for kind in _kinds()}


class StartedBackends:
    """The back ends that run, by the name of their kind."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._running: dict[str, Backend] = {}
        self._stack = ExitStack()

    def get(self, name: str) -> Backend:
        if name not in self._running:
            kind = KINDS[name]
            (require_part if kind.is_part else require_service)(kind.missing())
            folder = self._folders.mktemp(name.replace(" ", "-"))
            self._running[name] = self._stack.enter_context(kind.run(folder))
        return self._running[name]

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="session")
def started_backends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartedBackends]:
    started = StartedBackends(tmp_path_factory)
    try:
        yield started
    finally:
        started.close()


@pytest.fixture(
    params=[
        pytest.param(name, marks=[pytest.mark.engines] if kind.large else [])
        for name, kind in KINDS.items()
    ]
)
def backend(request: pytest.FixtureRequest, started_backends: StartedBackends) -> Backend:
    """An engine that runs."""
    return started_backends.get(request.param)


@pytest.fixture
def store(backend: Backend) -> Iterator[OnlineStore]:
    made = backend.open()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def name() -> str:
    """A name that no other table has, in this run and in those before."""
    return f"t{os.getpid()}_{next(_numbers)}"
