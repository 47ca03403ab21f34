"""The service `Logs` over real sockets and real certificates."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest

from holdfast.agent.credential_store import CredentialStore, NodeCredentials
from holdfast.agent.log_client import LogReading
from holdfast.agent.log_files import OUT, Query
from holdfast.agent.log_service import LogService
from holdfast.agent.shim import Log
from holdfast.system.certificates import Authority, TlsIdentity, peer_of, request_for
from holdfast.wire.errors import HoldfastError, Refused, Unavailable
from holdfast.wire.tokens import join_token, member_token

PATIENCE_S = 120.0


def in_a_loop(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*arguments: object, **named: object) -> None:
        asyncio.run(test(*arguments, **named))

    return run


def papers_of(authority: Authority, node: str, token: str | None = None) -> NodeCredentials:
    request, key = request_for(node)
    certificate = authority.sign(request, node)
    identity = TlsIdentity(certificate, key, authority.trust_pem)
    made = member_token(authority, node, peer_of(certificate).until_s)
    return NodeCredentials(identity, made if token is None else token)


def log_of(folder: Path, worker: int = 1) -> Log:
    home = folder / f"job.{worker}"
    home.mkdir(parents=True, exist_ok=True)
    return Log(str(home / "out.log"), 1 << 20)


@asynccontextmanager
async def serving(
    tmp_path: Path, authority: Authority, node: str = "n1"
) -> AsyncIterator[LogService]:
    credential_store = CredentialStore(tmp_path / "credential_store", papers_of(authority, node))
    service = await LogService.start(tmp_path / "logs", credential_store)
    try:
        yield service
    finally:
        await service.close()


async def read(reading: LogReading) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        return b"".join([piece.data async for piece in reading.pieces(follow=False)])


@in_a_loop
async def test_logs_of_a_job_are_read_over_the_network(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "authority", "test")
    big = b"".join(b"line %d\n" % number for number in range(50_000))
    log_of(tmp_path / "logs").write(big)
    async with serving(tmp_path, authority) as service:
        mine = papers_of(authority, "somebody")
        assert await read(LogReading(service.address, "n1", mine, Query("job"))) == big
        last = LogReading(service.address, "n1", mine, Query("job", outputs=(OUT,), lines=1))
        assert await read(last) == b"line 49999\n"
        assert await read(last) == b""  # it goes on where it was
        assert await read(LogReading(service.address, "n1", mine, Query("other"))) == b""


@in_a_loop
async def test_a_reader_follows_and_goes_on_where_it_was_when_the_agent_comes_back(
    tmp_path: Path,
) -> None:
    authority = Authority.make(tmp_path / "authority", "test")
    log = log_of(tmp_path / "logs")
    log.write(b"one\n")
    reading = None
    async with serving(tmp_path, authority) as service:
        reading = LogReading(service.address, "n1", papers_of(authority, "u"), Query("job"))
        async with asyncio.timeout(PATIENCE_S):
            found = b""
            async for piece in reading.pieces(follow=True):
                found += piece.data
                if found == b"one\n":
                    log.write(b"two\n")
                    log_of(tmp_path / "logs", 2).write(b"of another worker\n")
                if found.endswith(b"worker\n") and b"two" in found:
                    break
    with pytest.raises(Unavailable):
        await read(reading)
    log.write(b"three\n")
    async with serving(tmp_path, authority) as service:
        reading.address = service.address
        assert await read(reading) == b"three\n"


async def refused(reading: LogReading) -> HoldfastError:
    with pytest.raises(HoldfastError) as caught:
        await read(reading)
    return caught.value


@in_a_loop
async def test_whoever_has_no_papers_of_the_cluster_reads_nothing(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "authority", "test")
    other = Authority.make(tmp_path / "other", "test")
    log_of(tmp_path / "logs").write(b"secret\n")
    async with serving(tmp_path, authority) as service:
        query = Query("job")
        without = LogReading(service.address, "n1", papers_of(authority, "u", ""), query)
        assert isinstance(await refused(without), Refused)
        token = join_token(authority)
        wrong = await refused(
            LogReading(service.address, "n1", papers_of(authority, "u", token), query)
        )
        assert isinstance(wrong, Refused)
        assert "join token" in wrong.why
        strange = LogReading(service.address, "n1", papers_of(other, "u"), query)
        assert isinstance(await refused(strange), Unavailable)  # TLS ends it


@in_a_loop
async def test_another_node_cannot_pass_for_the_one_that_is_asked(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "authority", "test")
    log_of(tmp_path / "logs").write(b"words\n")
    async with serving(tmp_path, authority, "impostor") as service:
        reading = LogReading(service.address, "n1", papers_of(authority, "u"), Query("job"))
        assert isinstance(await refused(reading), Unavailable)


async def served_with(service: LogService, credential_store: CredentialStore) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while service._credentials != credential_store.credentials:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@in_a_loop
async def test_new_papers_are_served_on_the_same_port_while_streams_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.agent.log_service.LOG_CREDENTIALS_S", 0.05)
    authority = Authority.make(tmp_path / "authority", "test")
    log = log_of(tmp_path / "logs")
    log.write(b"one\n")
    credential_store = CredentialStore(tmp_path / "credential_store", papers_of(authority, "n1"))
    service = await LogService.start(tmp_path / "logs", credential_store)
    address = service.address
    try:
        mine = papers_of(authority, "u")
        async with asyncio.timeout(PATIENCE_S):
            async for piece in LogReading(address, "n1", mine, Query("job")).pieces(follow=True):
                if piece.data == b"one\n":
                    credential_store.credentials = papers_of(authority, "n1")
                    await served_with(service, credential_store)
                    assert await read(LogReading(address, "n1", mine, Query("job"))) == b"one\n"
                    log.write(b"two\n")
                else:
                    assert piece.data == b"two\n"
                    break
    finally:
        await service.close()


@in_a_loop
async def test_logs_are_served_with_the_new_certificate_though_it_failed_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.agent.log_service.LOG_CREDENTIALS_S", 0.01)
    authority = Authority.make(tmp_path / "authority", "test")
    async with serving(tmp_path, authority) as service:
        listen, taken = service._listen, asyncio.Event()
        failures = [OSError("no files are left"), RuntimeError("a bug")]

        async def fails(port: int) -> grpc.aio.Server:
            if failures:
                raise failures.pop()
            server = await listen(port)
            taken.set()
            return server

        monkeypatch.setattr(service, "_listen", fails)
        former = service._server
        service._credential_store.credentials = papers_of(authority, "n1")
        async with asyncio.timeout(PATIENCE_S):
            await taken.wait()
        assert service._server is not former
        assert service._credentials == service._credential_store.credentials
