"""How a server of ours listens: its address, TLS and event loop, and the file that says where."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import signal
import ssl
from pathlib import Path
from typing import Any, Final

from holdfast.system import logs
from holdfast.wire.errors import HoldfastError, Refused, Usage

SERVER_FILE: Final = "server.json"
_DIED: Final = 70  # the exit code of what should not happen (sysexits.h)

log = logs.get(__name__)


def split_address(listen: str, example: str) -> tuple[str, int]:
    """HOST:PORT, [IPV6]:PORT or :PORT (loopback). `example`: a command with a right one."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65_535:
        raise Usage(
            f"cannot listen on {listen!r}",
            why="an address is HOST:PORT; port 0 takes any free one",
            fix=example,
        )
    return host.strip("[]") or "127.0.0.1", int(port)


def joined_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine reaches that address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def tls_context(
    cert: Path | None, key: Path | None, ca: Path | None, command: str
) -> ssl.SSLContext | None:
    """The TLS of these files; with a CA, clients must show a certificate of it. `command` is what
    was given them as options."""
    if cert is None:
        if key or ca:
            raise Usage(
                "TLS needs a certificate",
                why="--tls-key or --tls-ca was given without --tls-cert",
                fix=f"{command} --tls-cert cert.pem --tls-key key.pem",
            )
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key)
        if ca is not None:
            context.load_verify_locations(ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise Refused(
            "the TLS files cannot be used",
            why=str(error),
            fix="check --tls-cert, --tls-key and --tls-ca: PEM files that belong together",
        ) from error
    return context


def new_loop() -> asyncio.AbstractEventLoop:
    """The fastest there is."""
    try:
        import uvloop  # noqa: PLC0415 - optional: not on every platform
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def write_server_file(folder: Path, address: str, **facts: Any) -> None:
    """Tell clients on this machine where we are; complete or not at all. `port`: the one that we
    listen on, where the address is another's that leads to it."""
    draft = folder / f"{SERVER_FILE}.tmp"
    draft.write_text(json.dumps({"address": address, "pid": os.getpid(), **facts}) + "\n")
    draft.replace(folder / SERVER_FILE)


def port_before(folder: Path) -> int:
    """The port of the server before us, if it was killed; 0: none is known."""
    try:
        facts = json.loads((folder / SERVER_FILE).read_bytes())
        return int(facts.get("port") or str(facts["address"]).rpartition(":")[2])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0


class ServerEnd:
    """When a server ends, and with which exit code: by a signal, or as a part failed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._code: asyncio.Future[int] = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.finish, 0)

    def finish(self, code: int) -> None:
        if not self._code.done():
            self._code.set_result(code)

    def disk_failed(self, error: BaseException) -> None:
        log.critical("the server stops: its disk cannot be trusted any more", error=str(error))
        self.finish(error.exit_code if isinstance(error, HoldfastError) else _DIED)

    def part_died(self, error: BaseException) -> None:
        log.critical("the server stops: a part of it has died", error=repr(error), exc_info=error)
        self.finish(_DIED)

    async def wait(self) -> int:
        return await self._code
