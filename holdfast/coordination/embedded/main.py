"""The embedded server as a process: options in, an exit code out."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from holdfast.coordination import tls
from holdfast.coordination.access import NAME, kept
from holdfast.coordination.address import SECRET, TRUSTED, is_loopback
from holdfast.coordination.embedded import closing
from holdfast.coordination.embedded.connection import Connection
from holdfast.coordination.embedded.greeting import Greeter
from holdfast.coordination.embedded.server import Server
from holdfast.coordination.embedded.store import Store
from holdfast.wire import logs, process
from holdfast.wire.clock import SystemClock
from holdfast.wire.errors import HoldfastError, Occupied, Refused, Usage
from holdfast.wire.limits import SEGMENT_BYTES_MAX, SNAPSHOT_TRANSACTIONS, SWEEP_S, TICK_MS
from holdfast.wire.tasks import end, start_task

log = logs.get(__name__)

SERVER_FILE = "server.json"


@dataclass(frozen=True, slots=True)
class Options:
    """How a server is started. `linger_s` None: it stays until it is told to stop. `network`:
    "trusted" means plain text also where other machines reach it."""

    data: Path
    listen: str = "127.0.0.1:2181"
    linger_s: float | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    network: str = ""
    tick_ms: int = TICK_MS
    snapshot_every: int = SNAPSHOT_TRANSACTIONS
    segment_bytes: int = SEGMENT_BYTES_MAX
    open: bool = False  # let everybody in, as a fresh ZooKeeper does


def split_address(listen: str) -> tuple[str, int]:
    """HOST:PORT, [IPV6]:PORT or :PORT (loopback)."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65_535:
        raise Usage(
            f"cannot listen on {listen!r}",
            why="an address is HOST:PORT; port 0 takes any free one",
            fix="holdfast coord serve --listen 127.0.0.1:2181",
        )
    return host.strip("[]") or "127.0.0.1", int(port)


def makes_certificates(options: Options) -> bool:
    """Whether it speaks TLS with certificates made from its secret: where other machines reach it,
    unless it was told to do otherwise."""
    plain = options.open or options.network == TRUSTED or options.tls_cert is not None
    return not plain and not is_loopback(split_address(options.listen)[0])


def tls_context(options: Options) -> ssl.SSLContext | None:
    """The listener's TLS; with a CA, clients must show a certificate of it."""
    if options.tls_cert is None:
        if options.tls_key or options.tls_ca:
            raise Usage(
                "TLS needs a certificate",
                why="--tls-key or --tls-ca was given without --tls-cert",
                fix="holdfast coord serve --tls-cert cert.pem --tls-key key.pem",
            )
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(options.tls_cert, options.tls_key)
        if options.tls_ca is not None:
            context.load_verify_locations(options.tls_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise Refused(
            "the TLS files cannot be used",
            why=str(error),
            fix="check --tls-cert, --tls-key and --tls-ca: PEM files that belong together",
        ) from error
    return context


def serve(options: Options) -> int:
    """Run a server until it is told to stop (SIGTERM, SIGINT) or lingers no more. 0 if all is well.

    Raises `Occupied` if another process has the folder or the address, `Corrupt` if the folder
    cannot be trusted.
    """
    host, port = split_address(options.listen)
    context = tls_context(options)
    process.raise_file_limit()
    os.umask(process.PRIVATE_MASK)
    store = Store.open(
        options.data,
        snapshot_transactions=options.snapshot_every,
        segment_bytes=options.segment_bytes,
    )
    try:
        closed = 0 if options.open else _closed(store)
        if makes_certificates(options):
            context = tls.server_context(kept(store.folder / NAME))
        # What was recovered lives as long as the process: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        with asyncio.Runner(loop_factory=_new_loop) as runner:
            return runner.run(_serve(options, store, host, port, context, closed))
    finally:
        store.close()


def _closed(store: Store) -> int:
    """Let in who can read the folder, and nobody else. How many nodes were open until now."""
    closed = closing.close(store, kept(store.folder / NAME), SystemClock().wall_ms())
    if closed:
        log.warning(
            "nodes that were open to everybody are closed: who can read the folder is let in",
            nodes=closed,
            folder=str(store.folder),
        )
    return closed


async def _serve(
    options: Options,
    store: Store,
    host: str,
    port: int,
    context: ssl.SSLContext | None,
    closed: int,
) -> int:
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[int] = loop.create_future()

    def finish(code: int) -> None:
        if not stop.done():
            stop.set_result(code)

    def broken(error: BaseException) -> None:
        log.critical("the server stops: its disk cannot be trusted any more", error=str(error))
        finish(error.exit_code if isinstance(error, HoldfastError) else 70)

    server = Server(
        loop,
        store,
        SystemClock(),
        tick_ms=options.tick_ms,
        tells_all=options.open,
        on_broken=broken,
    )

    def died(error: BaseException) -> None:
        log.critical("the server stops: a part of it has died", error=repr(error), exc_info=error)
        finish(70)

    greeter = None if context is None else Greeter(server, context, died)
    listener = await _listen(server, options.data, host, port, greeter)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, finish, 0)
    address = _address_of(listener)
    _write_server_file(options, address, tls=context is not None, closed=closed)
    log.info(
        "listening",
        address=address,
        data=str(options.data),
        nodes=len(server.tree.nodes),
        zxid=hex(server.tree.last_zxid),
        recovery=str(store.recovery),
    )
    sweeper = start_task(_sweep(server, options.linger_s, finish), "sweeper", died)
    code = await stop
    await end(sweeper)
    if isinstance(listener, Greeter):
        await listener.close()
    else:
        listener.close()
    await server.pipeline.drain()
    server.close_all()
    await asyncio.sleep(0)
    server.pipeline.close()
    (options.data / SERVER_FILE).unlink(missing_ok=True)
    log.info("stopped", zxid=hex(server.tree.last_zxid))
    return code


async def _listen(
    server: Server, folder: Path, host: str, port: int, greeter: Greeter | None
) -> asyncio.Server | Greeter:
    try:
        if greeter is not None:
            await greeter.listen(host, port)
            return greeter
        if port == 0 and (known := _port_before(folder)):
            # Those who know the address only, and cannot read the folder, find us again.
            with suppress(OSError):
                return await server.loop.create_server(
                    lambda: Connection(server), host, known, backlog=1024
                )
        return await server.loop.create_server(lambda: Connection(server), host, port, backlog=1024)
    except OSError as error:
        server.pipeline.close()
        raise Occupied(
            f"cannot listen on {f'[{host}]' if ':' in host else host}:{port}",
            why=error.strerror or str(error),
            fix="choose another port (--listen 127.0.0.1:0 takes any free one)",
        ) from error


async def _sweep(server: Server, linger_s: float | None, finish: Callable[[int], None]) -> None:
    while True:
        await asyncio.sleep(SWEEP_S)
        server.sweep()
        if linger_s is not None and not server.connections:
            idle_s = server.clock.now_s() - server.idle_since_s
            if idle_s > linger_s:
                log.info("nobody is connected any more", idle_s=round(idle_s, 1))
                finish(0)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415 - optional: not on every platform
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _address_of(listener: asyncio.Server | Greeter) -> str:
    host, port = listener.sockets[0].getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _port_before(folder: Path) -> int:
    """The port of the server before us, if it was killed; 0: none is known."""
    try:
        address = json.loads((folder / SERVER_FILE).read_bytes())["address"]
        return int(str(address).rpartition(":")[2])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _write_server_file(options: Options, address: str, *, tls: bool, closed: int) -> None:
    """Tell clients on this machine where we are; complete or not at all."""
    how = SECRET if makes_certificates(options) else tls
    facts = {"address": address, "pid": os.getpid(), "tls": how, "closed": closed}
    draft = options.data / f"{SERVER_FILE}.tmp"
    draft.write_text(json.dumps(facts) + "\n")
    draft.replace(options.data / SERVER_FILE)
