"""Calls at other workers' doors, without ever waiting for one of them."""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.train.members.admission import Introduction
from holdfast.train.members.hello import Epoch, Hello, Line, epoch_of
from holdfast.wire.errors import Refused
from holdfast.wire.handshake import Purpose
from holdfast.wire.job_credentials import Credentials
from holdfast.wire.limits import KNOCK_S


class Call:
    """One call: connect, prove, greet, hear the answers. `alive_s` is when it was last answered."""

    def __init__(self, address: str, hello: Hello, credentials: Credentials) -> None:
        """`OSError` if the address cannot be called at all."""
        host, _, port = address.rpartition(":")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        self.peer = hello.to
        self.line = Line(sock)
        self.alive_s = time.monotonic()
        self._connected = False
        self._hello = hello
        self._introduction = Introduction(credentials, Purpose.MESH, hello.worker, hello.to)
        try:
            code = sock.connect_ex((host.strip("[]"), int(port)))
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, "the call failed")  # noqa: TRY301
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, ValueError) as error:
            sock.close()
            raise OSError(f"{address}: {error}") from error

    @property
    def events(self) -> int:
        writes = not self._connected or self.line.sending
        return select.POLLIN | (select.POLLOUT if writes else 0)

    def progress(self, event: int) -> dict[str, Any] | None:
        """The next answer, if there is one. `OSError`, `EOFError` or `Refused` end the call."""
        if not event:
            if time.monotonic() > self.alive_s + KNOCK_S:
                raise TimeoutError("no answer")
            return None
        if not self._connected:
            code = self.line.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, "the call failed")
            if not event & select.POLLOUT:
                return None
            self._connected = True
        if not self._introduction.done:
            if not self._introduction.progress(self.line):
                return None
            self.line.say(self._hello.body())
        self.line.flush()
        answer = self.line.hear()
        if answer is not None:
            self.alive_s = time.monotonic()
        return answer

    def close(self) -> None:
        self.line.close()


def knock(
    hellos: Mapping[int, Hello],
    addresses: Mapping[int, str],
    wanted: Callable[[], bool],
    credentials: Credentials,
) -> dict[int, Epoch]:
    """Ask all of these at their doors, at the same time, whether they are there: where those are
    who answered in time. Ends early when it is not `wanted` any more."""
    calls: dict[int, Call] = {}
    found: dict[int, Epoch] = {}
    poll = select.poll()
    try:
        for peer, hello in hellos.items():
            try:
                call = Call(addresses.get(peer, ""), hello, credentials)
            except OSError:
                continue
            calls[call.line.sock.fileno()] = call
            poll.register(call.line.sock, call.events)
        while calls and wanted():
            ready = dict(poll.poll(100))
            for fd, call in list(calls.items()):
                try:
                    answer = call.progress(ready.get(fd, 0))
                    if answer is None:
                        poll.modify(fd, call.events)
                        continue
                    found[call.peer] = epoch_of(answer)
                except (OSError, EOFError, Refused):
                    pass  # no answer
                poll.unregister(fd)
                calls.pop(fd).close()
    finally:
        for call in calls.values():
            call.close()
    return found
