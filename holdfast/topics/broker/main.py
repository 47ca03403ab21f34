"""The broker as a process: options in, an exit code out."""

from __future__ import annotations

import asyncio
import gc
import os
import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.system import disk, logs, process
from holdfast.system.clock import SystemClock
from holdfast.system.listening import (
    SERVER_FILE,
    ServerEnd,
    is_loopback,
    joined_address,
    new_loop,
    port_before,
    split_address,
    tls_context,
    write_server_file,
)
from holdfast.system.tasks import end, start_task
from holdfast.topics.broker.broker import RETENTION_S, SWEEP_S, Broker, BrokerSettings
from holdfast.topics.broker.connection import KafkaConnection
from holdfast.topics.broker.disk.store import BrokerStore
from holdfast.topics.broker.handlers import HANDLERS
from holdfast.topics.broker.users import Users
from holdfast.wire.errors import Occupied, Refused, Usage

log = logs.get(__name__)

_COMMAND: Final = "holdfast topics serve"
_EXAMPLE: Final = f"{_COMMAND} --data DIR --listen 127.0.0.1:9092"
# A TLS handshake that takes longer is no client's.
HANDSHAKE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """How a broker is started. `advertise`: where clients are told to connect, if it is not where
    it listens. `users`: who may connect; None: everybody who can reach a loopback address."""

    data: Path
    listen: str = "127.0.0.1:9092"
    advertise: str = ""
    users: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    auto_create: bool = True
    default_partitions: int = 1
    group_delay_ms: int = 0
    retention_s: float = RETENTION_S


def read_users(options: BrokerOptions) -> Users:
    """Who may connect. An open broker is for its own machine only."""
    if options.users is not None:
        users = Users.read(options.users)
        if users.required:
            return users
        raise Refused(
            f"{options.users} has no user",
            why="a broker with a list of users lets in nobody else",
            fix="write a line with a name and a password",
        )
    host, _ = split_address(options.listen, _EXAMPLE)
    if not is_loopback(host):
        raise Refused(
            f"a broker on {host} needs users",
            why="other machines reach this address, and without users everybody may do everything",
            fix=f"{_COMMAND} --sasl-users FILE, or --listen 127.0.0.1:9092",
        )
    return Users({})


def serve(options: BrokerOptions) -> int:
    """Run a broker until it is told to stop (SIGTERM, SIGINT). 0 if all is well.

    Raises `Occupied` if another process has the folder or the address, `Corrupt` if the folder
    cannot be trusted.
    """
    if options.default_partitions < 1:
        raise Usage(
            f"a topic cannot have {options.default_partitions} partitions",
            fix=f"{_COMMAND} --partitions 1, or more",
        )
    host, port = split_address(options.listen, _EXAMPLE)
    users = read_users(options)
    context = tls_context(options.tls_cert, options.tls_key, options.tls_ca, _COMMAND)
    process.raise_file_limit()
    os.umask(process.PRIVATE_MASK)
    store = BrokerStore.open(options.data)
    clean = False
    try:
        # What was recovered lives as long as the process: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        with asyncio.Runner(loop_factory=new_loop) as runner:
            code = runner.run(_serve(options, store, users, (host, port), context))
        clean = code == 0
        return code
    finally:
        store.close(clean=clean)


async def _serve(
    options: BrokerOptions,
    store: BrokerStore,
    users: Users,
    address: tuple[str, int],
    context: ssl.SSLContext | None,
) -> int:
    loop = asyncio.get_running_loop()
    ending = ServerEnd(loop)
    settings = BrokerSettings(
        auto_create=options.auto_create,
        default_partitions=options.default_partitions,
        group_delay_ms=options.group_delay_ms,
        retention_s=options.retention_s,
    )
    clock = SystemClock()
    broker = Broker(loop, store, clock, settings, users, HANDLERS, on_broken=ending.disk_failed)
    listener = await _listen(broker, options.data, address, context)
    host, port = listener.sockets[0].getsockname()[:2]
    settings.address = (
        split_address(options.advertise, _EXAMPLE) if options.advertise else (host, port)
    )
    try:
        write_server_file(
            options.data, joined_address(*settings.address), tls=context is not None, port=port
        )
    except OSError as error:
        # On a full disk reads are served, to those who know the address.
        if error.errno not in disk.NO_ROOM:
            raise
        log.warning("the address could not be written down", why=str(error))
    log.info(
        "listening",
        address=joined_address(host, port),
        open_to_everybody=not users.required,
        data=str(options.data),
        topics=len(store.state.topics),
        recovery=str(store.recovery),
    )

    sweeper = start_task(_sweep(broker), "sweeper", ending.part_died)
    code = await ending.wait()
    await end(sweeper)
    listener.close()
    broker.fetches.release_all()
    await broker.pipeline.drain()
    await asyncio.sleep(0)
    broker.close_all()
    await asyncio.sleep(0)
    broker.pipeline.close()
    broker.end_threads()
    (options.data / SERVER_FILE).unlink(missing_ok=True)
    log.info("stopped", entry=store.last)
    return code


async def _sweep(broker: Broker) -> None:
    while True:
        await asyncio.sleep(SWEEP_S)
        broker.sweep()


async def _listen(
    broker: Broker, folder: Path, address: tuple[str, int], context: ssl.SSLContext | None
) -> asyncio.Server:
    host, port = address

    def connection() -> KafkaConnection:
        return KafkaConnection(broker)

    async def listen(number: int) -> asyncio.Server:
        if context is None:
            return await broker.loop.create_server(connection, host, number, backlog=1024)
        return await broker.loop.create_server(
            connection,
            host,
            number,
            backlog=1024,
            ssl=context,
            ssl_handshake_timeout=HANDSHAKE_S,
        )

    try:
        if port == 0 and (known := port_before(folder)):
            with suppress(OSError):  # clients that know the address find us again
                return await listen(known)
        return await listen(port)
    except OSError as error:
        broker.pipeline.close()
        raise Occupied(
            f"cannot listen on {joined_address(host, port)}",
            why=error.strerror or str(error),
            fix="choose another port (--listen 127.0.0.1:0 takes any free one)",
        ) from error
