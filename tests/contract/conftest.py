"""Sessions and actors of a test, closed after it whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from holdfast.coordination import Session, connect
from tests.contract.actors import Actor
from tests.contract.cutting import CuttingProxy
from tests.contract.planes import TIMEOUT_S, Plane


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def session(plane: Plane, closing: ExitStack) -> Session:
    return closing.enter_context(connect(plane.address()))


@pytest.fixture
def another(plane: Plane, closing: ExitStack) -> Callable[..., Session]:
    """More sessions of the same plane."""

    def make(timeout_s: float = TIMEOUT_S) -> Session:
        return closing.enter_context(connect(plane.address(timeout_s)))

    return make


@pytest.fixture
def actor(plane: Plane, closing: ExitStack) -> Callable[..., Actor]:
    """Processes with sessions of the same plane."""

    def make(timeout_s: float = TIMEOUT_S) -> Actor:
        return closing.enter_context(Actor(plane.address(timeout_s)))

    return make


@pytest.fixture
def proxy(plane: Plane, session: Session) -> Iterator[CuttingProxy]:
    """In front of one server of the plane (`session` has started it)."""
    with CuttingProxy(plane.a_port()) as made:
        yield made


@pytest.fixture
def through(plane: Plane, proxy: CuttingProxy, closing: ExitStack) -> Session:
    """A session that loses replies when the proxy is told to."""
    return closing.enter_context(connect(plane.by_port(proxy.port, timeout_s=8)))
