"""Asking a service through its gateways: connections that are kept, and answers and refusals as
values."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from holdfast.client.futures import closed
from holdfast.wire.errors import (
    Full,
    HoldfastError,
    TerminalError,
    TimedOut,
    Unavailable,
    Usage,
)

# Connections to gateways that a client keeps for its next prediction.
CLIENT_CONNECTIONS_KEPT: Final = 32

_OK: Final = 200
_UNAUTHORIZED: Final = 401
_PROBE_S: Final = 5.0
# What may succeed when it is asked again, and as which error.
_RETRY: Final[Mapping[int, type[HoldfastError]]] = {
    429: Full,
    502: Unavailable,
    503: Full,
    504: TimedOut,
}
# A kept connection may have been closed by the other side while nobody looked.
_STALE: Final = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a service answered. `outputs` by name, as lists; `version`, `variant` and `replica`: who
    gave it, if they said so; `text`: the JSON as it came."""

    outputs: dict[str, Any]
    version: int | None
    variant: str
    replica: str
    text: str

    @property
    def arm(self) -> str:
        """What `variant` was called, for one release."""
        return self.variant


def body_of(inputs: Any) -> bytes:
    """Inputs by name, or the only one's, as JSON. Arrays and tensors become lists. What is text or
    bytes already is sent as it is."""
    if isinstance(inputs, bytes):
        return inputs
    if isinstance(inputs, str):
        return inputs.encode()
    try:
        return json.dumps(_plain(inputs), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        nan = "JSON compliant" in str(error)
        raise Usage(
            f"the inputs cannot be written as JSON: {error}",
            why="JSON has neither NaN nor infinity" if nan else "",
            fix="numbers that are missing need a value of their own, or raw tensors"
            " (docs/serving-protocol.md, `binary_data_size`)"
            if nan
            else "give numbers, text, lists, arrays or tensors, by the names of the inputs",
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return value.decode()
    return value.tolist() if hasattr(value, "tolist") else value


class Gateways:
    """Connections to the gateways of a cluster. May be used by any thread; each request has one of
    its own, which is kept for the next."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[tuple[str, http.client.HTTPConnection]] = []
        self._busy: set[http.client.HTTPConnection] = set()
        self._closed = False

    def ask(
        self,
        addresses: Callable[[bool], tuple[str, ...]],
        service: str,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        timeout_s: float,
    ) -> Answer:
        """The answer of the first gateway that gives one. `addresses(fresh)` says where they are,
        as known, or asked anew when none of those answers; there is one at least."""
        if not timeout_s > 0:
            raise Usage(f"timeout_s is {timeout_s}", fix="a number of seconds above 0")
        trouble: Exception | None = None
        tried: set[str] = set()
        for fresh in (False, True):
            for address in addresses(fresh):
                if address in tried:
                    continue
                tried.add(address)
                try:
                    status, said, answer = self._post(address, path, body, headers, timeout_s)
                except TimeoutError as error:
                    raise TimedOut(
                        f"{service} does not answer within {timeout_s:g} s",
                        why=f"the gateway at {address} has said nothing",
                        fix=f"holdfast why {service}, or wait longer: timeout_s=...",
                    ) from error
                except (OSError, http.client.HTTPException) as error:
                    trouble = error
                    continue
                if status != _OK:
                    raise refusal(service, status, said)
                return _answer(said, answer)
        raise Unavailable(
            f"the gateway at {', '.join(sorted(tried))} does not answer",
            why=str(trouble),
            fix="holdfast status",
        ) from trouble

    def close(self) -> None:
        """Break what is under way, and keep nothing. May be called twice."""
        with self._lock:
            self._closed = True
            connections = [*self._busy, *(one for _, one in self._kept)]
            self._kept = []
        for one in connections:
            sock = one.sock
            if sock is not None:
                try:
                    sock.shutdown(2)  # whoever reads from it in another thread is told
                except OSError:
                    continue
            if one not in self._busy:
                one.close()

    def _post(
        self, address: str, path: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> tuple[int, str, http.client.HTTPResponse]:
        while True:
            connection, kept = self._taken(address, timeout_s)
            good = False
            try:
                connection.request("POST", path, body, dict(headers))
                answer = connection.getresponse()
                said = answer.read().decode(errors="replace")
                good = not answer.will_close
            except _STALE:
                # A prediction changes nothing: it may be asked again.
                if not kept:
                    raise
            else:
                return answer.status, said, answer
            finally:
                self._given(address, connection, good=good)

    def _taken(self, address: str, timeout_s: float) -> tuple[http.client.HTTPConnection, bool]:
        """A connection, and whether it was used before."""
        with self._lock:
            if self._closed:
                raise closed()
            at = next((n for n, (place, _) in enumerate(self._kept) if place == address), None)
            if at is None:
                connection, kept = connection_to(address, timeout_s), False
            else:
                (_, connection), kept = self._kept.pop(at), True
            self._busy.add(connection)
        connection.timeout = timeout_s
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        return connection, kept

    def _given(self, address: str, connection: http.client.HTTPConnection, *, good: bool) -> None:
        with self._lock:
            self._busy.discard(connection)
            if good and not self._closed and len(self._kept) < CLIENT_CONNECTIONS_KEPT:
                self._kept.append((address, connection))
                return
        connection.close()


def _answer(said: str, answer: http.client.HTTPResponse) -> Answer:
    marks = {
        word: answer.getheader(f"x-holdfast-{word}") for word in ("version", "variant", "replica")
    }
    version = marks["version"] or ""
    return Answer(
        json.loads(said),
        int(version) if version.isdecimal() else None,
        marks["variant"] or "",
        marks["replica"] or "",
        said,
    )


def readiness(address: str, service: str) -> str:
    """Nothing, if the gateway answers for the service (or asks for a key); else what it said."""
    connection = connection_to(address, _PROBE_S)
    try:
        connection.request("GET", f"/v2/models/{service}/ready")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
    finally:
        connection.close()
    return "" if status in (_OK, _UNAUTHORIZED) else f"status {status}"


def connection_to(url: str, timeout_s: float) -> http.client.HTTPConnection:
    """A connection to a gateway, as it says where it is. Its certificate is not checked: whoever
    uses this knows the address from the coordination plane."""
    import ssl

    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port
    if parts.scheme == "https":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
    return http.client.HTTPConnection(host, port, timeout=timeout_s)


def refusal(name: str, status: int, said: str) -> HoldfastError:
    """A service's error as one of ours: what was wrong, why, and its own hint, where it gives one.
    `{"error": "what\\nwhy: ...\\nfix: ..."}` is how a replica says it."""
    try:
        words = json.loads(said)["error"]
        first, *others = str(words).strip().splitlines() or [""]
    except (ValueError, KeyError, TypeError):
        first, others = said.strip(), []
    parts = {"why": [first] if first else [], "fix": [f"holdfast why {name}"]}
    into = "why"
    for line in others:
        label, colon, rest = line.partition(": ")
        if colon and label == "fix":
            into, parts["fix"] = "fix", [rest]
        else:
            parts[into].append(rest if colon and label == "why" else line)
    return _RETRY.get(status, TerminalError)(
        f"{name} answered {status}", why="\n".join(parts["why"]), fix="\n".join(parts["fix"])
    )
