"""Certificates end and are renewed while agents work; nothing is lost on the way."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.credential_store import CredentialStore
from holdfast.control.rpc.agents import GrpcAgents, Listening
from holdfast.control.rpc.join_endpoint import ServerIdentity
from holdfast.coordination import Session
from holdfast.system.certificates import Authority
from holdfast.wire.errors import BugError, Occupied
from tests.contract.rpc_stage import Play, play, rpc_session
from tests.contract.rpc_world import World, decided, soon, start

__all__ = ["play", "rpc_session"]  # fixtures

# Renewed at half of it. A busy machine must not let it run out: then nobody is let in any more.
SHORT = Listening(certificate_s=20.0)


def test_papers_are_renewed_again_and_again_and_orders_still_arrive(play: Play) -> None:
    async def scenario(world: World) -> None:
        n1 = await world.join("n1")
        await world.heard("n1")
        seen = {n1.credential_store.credentials.identity.certificate_pem}
        wanted = 0
        while len(seen) < 3:
            # As the coordinator does: sent again while outstanding, on each new connection.
            wanted += 1
            for _ in range(200):
                world.agents.order(1, decided(start("n1", wanted)))
                await asyncio.sleep(0.05)
                if (1, start("n1", wanted)) in n1.agent.delivered:
                    break
            seen.add(n1.credential_store.credentials.identity.certificate_pem)
        await soon(
            lambda: len(world.agents.observed().nodes["n1"].workers) == wanted, "all are reported"
        )
        assert [key.worker for key in n1.agent.started] == list(range(1, wanted + 1))
        held = await asyncio.to_thread(CredentialStore.open, world.folder / "n1")
        assert held.credentials == n1.credential_store.credentials

    play(scenario, SHORT)


def test_a_coordinator_makes_itself_a_new_certificate_when_it_is_due(tmp_path: Path) -> None:
    now_s = [1_000_000.0]
    authority = Authority.make(tmp_path, "reef", clock=lambda: now_s[0])
    identity = ServerIdentity(authority, ("127.0.0.1",), life_s=1_000.0)
    first = identity.present()
    now_s[0] += 499.0
    assert identity.present() == first
    now_s[0] += 2.0
    second = identity.present()
    assert second.certificate_pem != first.certificate_pem
    assert second.peer.until_s == now_s[0] + 1_000.0


def test_a_port_that_somebody_listens_on_is_not_shared(
    rpc_session: Session, tmp_path: Path
) -> None:
    authority = Authority.make(tmp_path / "authority", "reef")
    with GrpcAgents.start(rpc_session, authority) as agents:
        port = int(agents.address.rpartition(":")[2])
        with pytest.raises(Occupied, match="cannot be listened on"):
            GrpcAgents.start(rpc_session, authority, Listening(port=port))


def failing(agents: GrpcAgents, times: float) -> list[int]:
    """The next servers cannot listen so often; how often they have tried."""
    listen, tried = agents._listen, [0]

    async def fails(identity: ServerIdentity, port: int, join_port: int) -> list[Any]:
        tried[0] += 1
        if tried[0] <= times:
            raise OSError("no files are left")
        return await listen(identity, port, join_port)

    agents._listen = fails  # type: ignore[method-assign]
    return tried


def test_a_coordinator_that_cannot_listen_with_its_new_certificate_tries_again(
    rpc_session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.control.rpc.agents.RENEW_AGAIN_S", 0.01)
    authority = Authority.make(tmp_path / "authority", "reef")
    brief = Listening(certificate_s=4.0)
    with GrpcAgents.start(rpc_session, authority, brief) as agents:
        tried = failing(agents, 2)
        asyncio.run(soon(lambda: tried[0] >= 4, "it has renewed its certificate twice"))
        assert agents._thread is not None and agents._thread.is_alive()


def test_a_coordinator_that_never_listens_with_its_new_certificate_says_so(
    rpc_session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.control.rpc.agents.RENEW_AGAIN_S", 0.05)
    authority = Authority.make(tmp_path / "authority", "reef")
    deaths: list[BaseException] = []
    brief = Listening(certificate_s=2.0)
    with GrpcAgents.start(rpc_session, authority, brief, deaths.append) as agents:
        failing(agents, math.inf)
        asyncio.run(soon(lambda: deaths, "the process is told to end"))
        assert isinstance(deaths[0], BugError)


def test_a_leader_that_cannot_be_announced_for_a_bug_says_so(
    rpc_session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(_value: object) -> None:
        raise ValueError("nobody foresaw it")

    monkeypatch.setattr("holdfast.control.rpc.agents.rpc.contact_from", bug)
    authority = Authority.make(tmp_path / "authority", "reef")
    deaths: list[BaseException] = []
    with GrpcAgents.start(rpc_session, authority, died=deaths.append) as agents:
        agents.begin(1)
        asyncio.run(soon(lambda: deaths, "the process is told to end"))
