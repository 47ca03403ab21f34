"""Certificates end and are renewed while agents work; nothing is lost on the way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.agent.wallet import Wallet
from holdfast.control.agents import GrpcAgents, Listening
from holdfast.control.door import ServerIdentity
from holdfast.coordination import Session
from holdfast.wire.certificates import Authority
from holdfast.wire.errors import Occupied
from tests.contract.rpc_stage import Play, play, rpc_session
from tests.contract.rpc_world import World, decided, soon, start

__all__ = ["play", "rpc_session"]  # fixtures

# Renewed at half of it. A busy machine must not let it run out: then nobody is let in any more.
SHORT = Listening(certificate_s=20.0)


def test_papers_are_renewed_again_and_again_and_orders_still_arrive(play: Play) -> None:
    async def scenario(world: World) -> None:
        n1 = await world.join("n1")
        await world.heard("n1")
        seen = {n1.wallet.papers.identity.certificate_pem}
        wanted = 0
        while len(seen) < 3:
            # As the coordinator does: sent again while outstanding, on each new connection.
            wanted += 1
            for _ in range(200):
                world.agents.order(1, decided(start("n1", wanted)))
                await asyncio.sleep(0.05)
                if (1, start("n1", wanted)) in n1.agent.delivered:
                    break
            seen.add(n1.wallet.papers.identity.certificate_pem)
        await soon(
            lambda: len(world.agents.observed().nodes["n1"].workers) == wanted, "all are reported"
        )
        assert [key.worker for key in n1.agent.started] == list(range(1, wanted + 1))
        held = await asyncio.to_thread(Wallet.open, world.folder / "n1")
        assert held.papers == n1.wallet.papers

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
