"""The embedded server as a process: options in, an exit code out.

Before it listens, a server that has a secret closes its tree to strangers: a fresh tree is open to
everybody, as a fresh ZooKeeper's is, and so is one of an older version. Every such node gets the
access list that our client would give it; what somebody closed with a list of his own stays as it
is. The root is the last: while it is open, a server that was killed in the middle has not finished.
These are writes like any other: in the log, by a session that is opened and closed for them.
"""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.coordination import tls
from holdfast.coordination.access import NAME, OWNER, Access, kept
from holdfast.coordination.address import SECRET, TRUSTED
from holdfast.coordination.embedded import paths, protocol
from holdfast.coordination.embedded.connection import ClientConnection
from holdfast.coordination.embedded.greeting import Greeter
from holdfast.coordination.embedded.records import encode_identities, encode_record
from holdfast.coordination.embedded.requests import decode_write, open_session_body, set_acl_body
from holdfast.coordination.embedded.server import CoordinationServer
from holdfast.coordination.embedded.store import Store
from holdfast.coordination.embedded.transactions import ACL, AuthIdentity, WriteTransaction
from holdfast.system import logs, process
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
from holdfast.wire.errors import BugError, Occupied
from holdfast.wire.limits import SEGMENT_BYTES_MAX, SNAPSHOT_TRANSACTIONS, SWEEP_S, TICK_MS

log = logs.get(__name__)

_COMMAND: Final = "holdfast coord serve"
_EXAMPLE: Final = f"{_COMMAND} --listen 127.0.0.1:2181"
_ITSELF: Final = (AuthIdentity("super", ""),)
_BATCH: Final = 256  # writes that become durable together
_SESSION_MS: Final = 10_000  # it is closed again at once; after a crash it ends as any other

Write = tuple[int, bytes]  # operation code, body


@dataclass(frozen=True, slots=True)
class ServerOptions:
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


def makes_certificates(options: ServerOptions) -> bool:
    """Whether it speaks TLS with certificates made from its secret: where other machines reach it,
    unless it was told to do otherwise."""
    plain = options.open or options.network == TRUSTED or options.tls_cert is not None
    return not plain and not is_loopback(split_address(options.listen, _EXAMPLE)[0])


def serve(options: ServerOptions) -> int:
    """Run a server until it is told to stop (SIGTERM, SIGINT) or lingers no more. 0 if all is well.

    Raises `Occupied` if another process has the folder or the address, `Corrupt` if the folder
    cannot be trusted.
    """
    host, port = split_address(options.listen, _EXAMPLE)
    files = options.tls_cert, options.tls_key, options.tls_ca
    context = tls_context(*files, _COMMAND)
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
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(_serve(options, store, host, port, context, closed))
    finally:
        store.close()


def _closed(store: Store) -> int:
    """Let in who can read the folder, and nobody else. How many nodes were open until now."""
    closed = close(store, kept(store.folder / NAME), SystemClock().wall_ms())
    if closed:
        log.warning(
            "nodes that were open to everybody are closed: who can read the folder is let in",
            nodes=closed,
            folder=str(store.folder),
        )
    return closed


async def _serve(
    options: ServerOptions,
    store: Store,
    host: str,
    port: int,
    context: ssl.SSLContext | None,
    closed: int,
) -> int:
    loop = asyncio.get_running_loop()
    ending = ServerEnd(loop)
    server = CoordinationServer(
        loop,
        store,
        SystemClock(),
        tick_ms=options.tick_ms,
        tells_all=options.open,
        on_broken=ending.disk_failed,
    )

    greeter = None if context is None else Greeter(server, context, ending.part_died)
    listener = await _listen(server, options.data, host, port, greeter)
    address = joined_address(*listener.sockets[0].getsockname()[:2])
    how = SECRET if makes_certificates(options) else context is not None
    write_server_file(options.data, address, tls=how, closed=closed)
    log.info(
        "listening",
        address=address,
        data=str(options.data),
        nodes=len(server.tree.nodes),
        zxid=hex(server.tree.last_zxid),
        recovery=str(store.recovery),
    )
    sweeper = start_task(
        _sweep(server, options.linger_s, ending.finish), "sweeper", ending.part_died
    )
    code = await ending.wait()
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
    server: CoordinationServer, folder: Path, host: str, port: int, greeter: Greeter | None
) -> asyncio.Server | Greeter:
    try:
        if greeter is not None:
            await greeter.listen(host, port)
            return greeter
        if port == 0 and (known := port_before(folder)):
            # Those who know the address only, and cannot read the folder, find us again.
            with suppress(OSError):
                return await server.loop.create_server(
                    lambda: ClientConnection(server), host, known, backlog=1024
                )
        return await server.loop.create_server(
            lambda: ClientConnection(server), host, port, backlog=1024
        )
    except OSError as error:
        server.pipeline.close()
        raise Occupied(
            f"cannot listen on {joined_address(host, port)}",
            why=error.strerror or str(error),
            fix="choose another port (--listen 127.0.0.1:0 takes any free one)",
        ) from error


async def _sweep(
    server: CoordinationServer, linger_s: float | None, finish: Callable[[int], None]
) -> None:
    while True:
        await asyncio.sleep(SWEEP_S)
        server.sweep()
        if linger_s is not None and not server.connections:
            idle_s = server.clock.now_s() - server.idle_since_s
            if idle_s > linger_s:
                log.info("nobody is connected any more", idle_s=round(idle_s, 1))
                finish(0)


def close(store: Store, access: Access, now_ms: int) -> int:
    """Close what is open to everybody, or to whoever had an earlier secret of this folder. How many
    nodes were; the few of a fresh tree do not count."""
    found = [path for path in store.tree.nodes if _is_open(store, access, path)]
    if not found:
        return 0
    found.sort(key=lambda path: (path == paths.ROOT, path))
    session = secrets.randbits(63) or 1
    writes = list(_writes(access, found))
    for start in range(0, len(writes), _BATCH):
        _commit(store, session, writes[start : start + _BATCH], max(now_ms, store.last_time_ms))
    own = (paths.ROOT, paths.PROC)
    return sum(1 for path in found if path not in own and not path.startswith(f"{paths.PROC}/"))


def _is_open(store: Store, access: Access, path: str) -> bool:
    """Whether strangers may do something here, or only those who had an older secret."""
    for entry in store.tree.nodes[path].acl:
        if entry.scheme == "world":
            return True
        if entry.scheme == "digest" and entry.id.startswith(f"{OWNER}:"):
            return entry.id != access.owner
    return False


def _writes(access: Access, found: list[str]) -> Iterator[Write]:
    yield protocol.CREATE_SESSION, open_session_body(_SESSION_MS)
    for path in found:
        wanted = tuple(ACL(*entry) for entry in access.acl(path))
        yield protocol.SET_ACL, set_acl_body(path, wanted)
    yield protocol.CLOSE_SESSION, b""


def _commit(store: Store, session: int, writes: list[Write], now_ms: int) -> None:
    first = store.last_zxid + 1
    who = encode_identities(_ITSELF)
    records = [
        encode_record(first + at, now_ms, session, opcode, who, body)
        for at, (opcode, body) in enumerate(writes)
    ]
    store.commit(records, first + len(records) - 1)
    for at, (opcode, body) in enumerate(writes):
        transaction = WriteTransaction(session, _ITSELF, decode_write(opcode, body))
        outcome = store.tree.apply(transaction, first + at, now_ms)
        if outcome.error:
            raise BugError(f"an access list was refused: {transaction.operation!r}")
