"""A plane without models, a store, a registry over both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.coordination import Session, connect
from holdfast.models.records import MODELS
from holdfast.models.registry import Registry
from holdfast.storage import Blobs, open_store
from tests.contract.planes import EmbeddedPlane


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    plane = EmbeddedPlane(tmp_path_factory.mktemp("registry"))
    try:
        yield plane.address(timeout_s=20)
    finally:
        plane.end()


@pytest.fixture
def address(shared: str) -> Iterator[str]:
    """A plane without models."""
    yield shared
    with connect(shared) as session:
        wipe(session, MODELS)


def wipe(session: Session, path: str) -> None:
    for name in session.nodes.children(path):
        wipe(session, f"{path}/{name}")
    session.nodes.delete(path)


@pytest.fixture
def session(address: str) -> Iterator[Session]:
    with connect(address) as made:
        yield made


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return open_store(tmp_path / "store")


@pytest.fixture
def registry(session: Session, blobs: Blobs) -> Registry:
    return Registry(session, blobs, "anna")
