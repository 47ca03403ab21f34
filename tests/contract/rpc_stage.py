"""Fixtures: a plane, a coordinator that leads on it, and a scenario that is played with both."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from holdfast.control.rpc.agents import GrpcAgents, Listening
from holdfast.coordination import Session, connect
from holdfast.system.certificates import Authority
from tests.contract.planes import EmbeddedPlane
from tests.contract.rpc_world import World

Scenario = Callable[[World], Awaitable[None]]
Play = Callable[..., None]


@pytest.fixture
def rpc_session(tmp_path: Path) -> Iterator[Session]:
    plane = EmbeddedPlane(tmp_path / "plane")
    try:
        with connect(plane.address()) as session:
            yield session
    finally:
        plane.end()


@pytest.fixture
def play(rpc_session: Session, tmp_path: Path) -> Play:
    """Play a scenario with a coordinator that leads in term 1."""

    def run(scenario: Scenario, listening: Listening | None = None) -> None:
        authority = Authority.make(tmp_path / "authority", "reef")

        async def scene(agents: GrpcAgents) -> None:
            async with AsyncExitStack() as stack:
                await scenario(World(rpc_session, authority, agents, tmp_path, stack))

        with GrpcAgents.start(rpc_session, authority, listening) as agents:
            agents.begin(1)
            asyncio.run(scene(agents))

    return run
