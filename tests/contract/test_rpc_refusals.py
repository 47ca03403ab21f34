"""Whoever may not come in is told why, by status and sentence, and the server goes on."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from functools import partial
from pathlib import Path

import grpc
import grpc.aio
import pytest

from holdfast.agent import credential_store as credential_stores
from holdfast.agent.credential_store import CredentialStore, NodeCredentials
from holdfast.agent.grpc_transport import GrpcTransport
from holdfast.agent.uplink import Uplink
from holdfast.system import channels
from holdfast.system.certificates import Authority, TlsIdentity, request_for
from holdfast.wire import rpc, tokens, values
from holdfast.wire.errors import Corrupt, HoldfastError, Missing, Refused, Unavailable
from holdfast.wire.proto import cluster_pb2 as pb
from holdfast.wire.reports import NodeFacts
from holdfast.wire.resources import Resources
from tests.contract.rpc_stage import Play, play, rpc_session
from tests.contract.rpc_world import MemoryAgent, World, credentials, soon

__all__ = ["play", "rpc_session"]  # fixtures

HELLO = pb.Hello(
    protocol=rpc.PROTOCOL,
    cluster="reef",
    node="n1",
    session="s",
    process="p",
    serial=1,
)
SNAPSHOT = values.facts_bytes(NodeFacts("n2", Resources()))


async def attempt(world: World, held: NodeCredentials, *messages: bytes) -> grpc.aio.AioRpcError:
    """Open a stream, say this, and read until it is ended for us."""
    async with channels.channel_to(world.agents.address, held.identity) as channel:
        stream = channels.AgentStream(channel, held.token)
        try:
            for message in messages:
                await stream.write(message)
            async with asyncio.timeout(20.0):
                while await stream.read() is not None:
                    pass
        except grpc.aio.AioRpcError as failed:
            return failed
    raise AssertionError("it was let in")


def hello(**changes: object) -> bytes:
    said = pb.Hello()
    said.CopyFrom(HELLO)
    for key, value in changes.items():
        setattr(said, key, value)
    return pb.FromAgent(hello=said).SerializeToString()


def sentence(failed: grpc.aio.AioRpcError) -> HoldfastError:
    error = rpc.error_from(failed, "there")
    assert error.what, "it says what happened"
    assert error.fix, "it says what helps"
    return error


@pytest.mark.parametrize(
    ("messages", "code", "word"),
    [
        ([hello(protocol=0)], grpc.StatusCode.FAILED_PRECONDITION, "upgrade holdfast on the agent"),
        (
            [hello(protocol=rpc.PROTOCOL + 1)],
            grpc.StatusCode.FAILED_PRECONDITION,
            "on the coordinator",
        ),
        ([hello(cluster="atoll")], grpc.StatusCode.PERMISSION_DENIED, "not 'atoll'"),
        ([hello(node="n2")], grpc.StatusCode.PERMISSION_DENIED, "cannot speak for node n2"),
        ([hello(session="")], grpc.StatusCode.INVALID_ARGUMENT, "without a session"),
        ([b"\xff\xff\xff noise"], grpc.StatusCode.INVALID_ARGUMENT, "are no FromAgent"),
        ([b""], grpc.StatusCode.INVALID_ARGUMENT, "does not begin with a hello"),
        ([hello(), b"\xff\xff noise"], grpc.StatusCode.INVALID_ARGUMENT, "are no FromAgent"),
        ([hello(), hello()], grpc.StatusCode.INVALID_ARGUMENT, "in the middle"),
        (
            [hello(), pb.FromAgent(snapshot=SNAPSHOT).SerializeToString()],
            grpc.StatusCode.INVALID_ARGUMENT,
            "a snapshot of n2",
        ),
    ],
)
def test_a_stream_that_is_not_right_is_ended_with_the_reason(
    play: Play, messages: list[bytes], code: grpc.StatusCode, word: str
) -> None:
    async def scenario(world: World) -> None:
        held = (
            await credentials(world.authority, world.folder, "n1", world.agents.join_address)
        ).credentials
        failed = await attempt(world, held, *messages)
        assert failed.code() is code
        assert word in str(sentence(failed))
        await world.join("n2")
        await world.heard("n2")

    play(scenario)


def test_a_token_that_does_not_hold_opens_no_stream(play: Play) -> None:
    async def scenario(world: World) -> None:
        authority = world.authority
        held = (
            await credentials(authority, world.folder, "n1", world.agents.join_address)
        ).credentials
        for token, why in (
            ("", "there is none"),
            ("holdfast1.AAAA.BBBB", "damaged"),
            (tokens.join_token(authority), "is a join token"),
            (tokens.member_token(authority, "n2", 4e9), "for node 'n2'"),
            (tokens.member_token(authority, "n1", authority.now_s() - 5), "ended"),
        ):
            failed = await attempt(world, dataclasses.replace(held, token=token), hello())
            assert failed.code() is grpc.StatusCode.UNAUTHENTICATED
            assert why in sentence(failed).why
        # What comes with a token that does not hold is not looked into.
        failed = await attempt(world, dataclasses.replace(held, token=""), b"\xff\xff\xff noise")
        assert failed.code() is grpc.StatusCode.UNAUTHENTICATED

    play(scenario)


def test_a_join_token_that_does_not_hold_gives_no_certificate(play: Play) -> None:
    async def scenario(world: World) -> None:
        authority = world.authority
        other = Authority.make(world.folder / "other", "atoll")
        late = Authority.open(world.folder / "authority", clock=lambda: authority.now_s() - 7_200)
        for token, why in (
            (tokens.join_token(late), "ended"),
            (tokens.join_token(authority, node="n2"), "for node 'n2'"),
            (tokens.join_token(authority)[:-9], ""),
            (tokens.member_token(authority, "n1", 4e9), "whom to trust"),
        ):
            with pytest.raises(Refused) as refused:
                await credential_stores.join(
                    world.folder / "x", "n1", world.agents.join_address, token
                )
            assert why in refused.value.why
        # Its token names an authority that this endpoint does not have: we do not speak to it.
        with pytest.raises(Unavailable, match="does not answer"):
            await credential_stores.join(
                world.folder / "x", "n1", world.agents.join_address, tokens.join_token(other)
            )
        assert not (world.folder / "x").exists()

    play(scenario)


def test_a_bad_request_at_the_join_endpoint_is_refused(play: Play) -> None:
    async def scenario(world: World) -> None:
        token = tokens.join_token(world.authority)
        good = request_for("n1")[0]
        for request, code in (
            (b"\xff\xff noise", grpc.StatusCode.INVALID_ARGUMENT),
            (
                pb.CertificateRequest(protocol=rpc.PROTOCOL, request_pem=b"x").SerializeToString(),
                grpc.StatusCode.INVALID_ARGUMENT,
            ),
            (
                pb.CertificateRequest(protocol=9, request_pem=good).SerializeToString(),
                grpc.StatusCode.FAILED_PRECONDITION,
            ),
        ):
            async with channels.join_channel_to(
                world.agents.join_address, world.authority.trust_pem
            ) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    await channels.call_once(channel, rpc.JOIN, request, token)
            assert failed.value.code() is code
            sentence(failed.value)

    play(scenario)


def test_who_has_no_token_gets_as_far_as_no_message(play: Play) -> None:
    async def scenario(world: World) -> None:
        other = Authority.make(world.folder / "other", world.authority.cluster)
        noise, large = b"\xff\xff noise", bytes(1024 * 1024)
        tried = [
            (rpc.JOIN, noise, "", grpc.StatusCode.UNAUTHENTICATED),
            (rpc.JOIN, large, "", grpc.StatusCode.UNAUTHENTICATED),
            (rpc.JOIN, noise, "x" * 100, grpc.StatusCode.UNAUTHENTICATED),
            (rpc.JOIN, noise, tokens.join_token(other), grpc.StatusCode.UNAUTHENTICATED),
            (rpc.STAND, noise, tokens.join_token(world.authority), grpc.StatusCode.UNAUTHENTICATED),
            # One with a token may be mistaken, but not at length.
            (
                rpc.JOIN,
                large,
                tokens.join_token(world.authority),
                grpc.StatusCode.RESOURCE_EXHAUSTED,
            ),
        ]
        for method, request, token, code in tried:
            async with channels.join_channel_to(
                world.agents.join_address, world.authority.trust_pem
            ) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    await channels.call_once(channel, method, request, token)
            assert failed.value.code() is code, failed.value

    play(scenario)


def test_a_node_renews_only_its_own_certificate(play: Play) -> None:
    async def scenario(world: World) -> None:
        held = (
            await credentials(world.authority, world.folder, "n1", world.agents.join_address)
        ).credentials
        request = pb.CertificateRequest(protocol=rpc.PROTOCOL, request_pem=request_for("n2")[0])
        async with channels.channel_to(world.agents.address, held.identity) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await channels.call_once(
                    channel, rpc.RENEW, request.SerializeToString(), held.token
                )
        assert failed.value.code() is grpc.StatusCode.PERMISSION_DENIED

    play(scenario)


def test_a_stranger_is_told_that_its_certificate_is_of_another_cluster(play: Play) -> None:
    async def scenario(world: World) -> None:
        other = Authority.make(world.folder / "other", "reef")
        request, key = request_for("n1")
        certificate = other.sign(request, "n1")
        # It trusts us, so that only our side has something against it; and one that does not.
        for trust_pem in (world.authority.trust_pem, other.trust_pem):
            identity = TlsIdentity(certificate, key, trust_pem)
            stranger = NodeCredentials(identity, tokens.member_token(other, "n1", 4e9))
            credential_store = CredentialStore(world.folder / "stranger", stranger)
            uplink = Uplink(
                MemoryAgent("n1"), "n1", GrpcTransport("n1", credential_store), lambda: "s"
            )
            uplink.point_to(world.contact())
            task = asyncio.create_task(uplink.run())
            await soon(partial(getattr, uplink, "trouble"), "it has trouble")
            task.cancel()
            trouble = uplink.trouble
            assert isinstance(trouble, Refused), str(trouble)
            assert "certificate" in str(trouble)
            assert "join" in trouble.fix
        await world.join("n2")
        await world.heard("n2")

    play(scenario)


def test_an_agent_whose_certificate_has_ended_is_told_so(play: Play) -> None:
    async def scenario(world: World) -> None:
        request, key = request_for("n1")
        certificate = world.authority.sign(request, "n1", life_s=-10.0)
        identity = TlsIdentity(certificate, key, world.authority.trust_pem)
        credential_store = CredentialStore(
            world.folder / "late", NodeCredentials(identity, "token")
        )
        uplink = Uplink(MemoryAgent("n1"), "n1", GrpcTransport("n1", credential_store), lambda: "s")
        uplink.point_to(world.contact())
        task = asyncio.create_task(uplink.run())
        await soon(lambda: uplink.trouble, "it has trouble")
        task.cancel()
        assert isinstance(uplink.trouble, Refused)
        assert "has ended" in uplink.trouble.what

    play(scenario)


def test_a_coordinator_that_does_not_lead_turns_agents_away(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.agents.end()
        n1 = await world.join("n1")
        await soon(lambda: n1.uplink.trouble, "it is turned away")
        assert isinstance(n1.uplink.trouble, Unavailable)
        assert "does not lead" in str(n1.uplink.trouble)
        await asyncio.to_thread(world.agents.begin, 2)
        await world.heard("n1")

    play(scenario)


def test_no_secret_is_in_a_log_or_an_error(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[str] = []

    async def scenario(world: World) -> None:
        n1 = await world.join("n1")
        await world.heard("n1")
        token = tokens.join_token(world.authority, node="n2")
        with pytest.raises(Refused) as refused:
            await credential_stores.join(world.folder / "x", "n1", world.agents.join_address, token)
        held = n1.credential_store.credentials
        failed = await attempt(world, dataclasses.replace(held, token=token), hello())
        seen.extend([token, held.token, held.identity.key_pem.decode()])
        caplog.records.append(
            logging.makeLogRecord(
                {"msg": f"{refused.value} {failed!r} {held!r} {n1.credential_store!r}"}
            )
        )

    play(scenario)
    lines = "\n".join(record.getMessage() for record in caplog.records)
    assert "a node has a certificate" in lines
    for secret in seen:
        assert secret[40:80] not in lines


def test_papers_that_are_missing_or_damaged_are_told(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="no credentials"):
        CredentialStore.open(tmp_path)
    for text in ("", "[]", "{}", '{"certificate_pem": "!", "key_pem": "", "trust_pem": ""}'):
        (tmp_path / "credentials.json").write_text(text)
        with pytest.raises(Corrupt, match="damaged"):
            CredentialStore.open(tmp_path)
