"""Somebody who has no credentials: what he tries, and what comes of it, one JSON object a line.

    python -m tests.integration.stranger UID DEED ARGUMENT...

Everything is imported first; then it becomes that user. UID -1 stays who it is: a host without any
file of the cluster.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 (it is imported when a host is first looked up)
import json
import os
import socket
import ssl
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE

from holdfast.control.decide.spec import JobSpec, Resources
from holdfast.control.store.plane import ControlPlane
from holdfast.coordination import connect
from holdfast.wire.errors import HoldfastError

# The beginning of every HTTP/2 connection, with empty settings: whoever is let in answers it.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
PATHS = ("/", "/holdfast", "/holdfast/jobs", "/holdfast/nodes", "/holdfast/leader", "/zookeeper")
WAIT_S = 60.0


def tell(what: str, came: str) -> None:
    print(json.dumps({"tried": what, "came": came}), flush=True)


def attempt(what: str, act: Callable[[], Any]) -> None:
    """Do it, and say what came of it: "done", or the name of the refusal."""
    try:
        act()
    except Exception as error:  # whatever refuses, it is a refusal
        tell(what, type(error).__name__)
    else:
        tell(what, "done")


def plane(host: str, port: str) -> None:
    """The coordination plane, with another's client and with ours."""
    client = KazooClient(f"{host}:{port}")
    client.start(timeout=WAIT_S)
    for path in PATHS:
        attempt(f"get {path}", partial(client.get, path))
        attempt(f"list {path}", partial(client.get_children, path))
        attempt(f"set {path}", partial(client.set, path, b"evil"))
        attempt(f"delete {path}", partial(client.delete, path, recursive=False))
        attempt(f"open {path}", partial(client.set_acls, path, OPEN_ACL_UNSAFE))
        under = f"{path.rstrip('/')}/evil"
        attempt(f"create {under}", partial(client.create, under, b"", OPEN_ACL_UNSAFE))
    request = client.transaction()
    request.create("/holdfast/jobs/evil", b"", OPEN_ACL_UNSAFE)
    request.set_data("/holdfast/jobs", b"evil")
    outcomes = request.commit()
    tell("multi", "done" if not any(isinstance(one, Exception) for one in outcomes) else "refused")
    client.stop()
    client.close()

    def submit() -> None:
        with connect(f"zk://{host}:{port}", timeout_s=WAIT_S) as session:
            spec = JobSpec("evil", ("touch", "/tmp/evil"), resources=Resources(cpu=0.1))
            ControlPlane(session).submit(spec)

    attempt("submit a job", submit)


def tls(host: str, port: str) -> None:
    """A port of gRPC, without a certificate: does it answer at all?"""

    def ask() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection((host, int(port)), timeout=WAIT_S) as plain,
            context.wrap_socket(plain) as link,
        ):
            link.sendall(PREFACE)
            if not link.recv(9):
                raise ConnectionError

    attempt("speak without a certificate", ask)

    def plainly() -> None:
        with socket.create_connection((host, int(port)), timeout=WAIT_S) as link:
            link.sendall(PREFACE)
            if not link.recv(9):
                raise ConnectionError

    attempt("speak without TLS", plainly)


def closed_plane(host: str, port: str) -> None:
    """The coordination plane where other machines reach it: does it say a word?"""
    words = (b"ruok\n", b"srvr\n", b"mntr\n", b"\x00\x00\x00\x2d" + bytes(45))
    for word in words:
        attempt(f"say {word[:5]!r}", partial(_answered, host, port, word))
        attempt(f"say {word[:5]!r} by TLS", partial(_answered, host, port, word, tls=True))

    def submit() -> None:
        for more in ("", "?tls=true&verify=none"):
            with connect(f"zk://{host}:{port}{more}", timeout_s=2) as session:
                spec = JobSpec("evil", ("touch", "/tmp/evil"), resources=Resources(cpu=0.1))
                ControlPlane(session).submit(spec)

    attempt("submit a job", submit)


def member(host: str, port: str) -> None:
    """A worker's port: frames of a kind that made an older version allocate, and of its hello."""
    frames = {
        "4 GiB are announced": b"HFt\n" + bytes(2) + (2**32 - 1).to_bytes(8, "little"),
        "a hello": b"HFk\n" + bytes([1, 2]) + bytes(48),
        "zeros": bytes(100),
    }
    for what, frame in frames.items():
        attempt(what, partial(_answered, host, port, frame))
        attempt(f"{what}, by TLS", partial(_answered, host, port, frame, tls=True))


def replica(host: str, port: str) -> None:
    """A replica's port: a prediction, what it counts, and what it says of its model."""
    body = b'{"inputs": []}'
    for path in ("/v2/models/two/infer", "/holdfast/stats", "/v2/models/two", "/v2"):
        text = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        for way in (False, True):

            def ask(text: str = text, way: bool = way) -> None:
                answer = _answered(host, port, text.encode() + body, tls=way)
                if b" 403 " in answer or b" 404 " in answer or b" 405 " in answer:
                    raise PermissionError(answer)

            attempt(f"{path}{' by TLS' if way else ''}", ask)


def _answered(host: str, port: str, data: bytes, *, tls: bool = False) -> bytes:
    """What comes for it; an error if nothing does."""
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as plain:
        link = plain
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            link = context.wrap_socket(plain)
        with link:
            link.sendall(data)
            came = link.recv(100)
            if not came:
                raise ConnectionError
            return came


def unix(path: str) -> None:
    """A socket in a folder."""

    def ask() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.connect(path)

    attempt(f"connect to {path}", ask)


def walk(top: str) -> None:
    """A folder: every name in it that this user can see, and every file that he can read."""
    attempt(f"list {top}", lambda: list(os.scandir(top)))
    for here, _, names in os.walk(top):
        for name in names:
            attempt(f"read {here}/{name}", Path(here, name).read_bytes)


def open_files(listing: str) -> None:
    """Files whose names are known."""
    for path in Path(listing).read_text().splitlines():
        attempt(f"read {path}", Path(path).read_bytes)


DEEDS: dict[str, Callable[..., None]] = {
    "plane": plane,
    "tls": tls,
    "closed_plane": closed_plane,
    "member": member,
    "replica": replica,
    "unix": unix,
    "walk": walk,
    "open_files": open_files,
}


def main() -> None:
    user, deed, *arguments = sys.argv[1:]
    if int(user) >= 0:
        os.setgroups([])
        os.setgid(int(user))
        os.setuid(int(user))
        os.environ["HOME"] = "/nonexistent"
    try:
        DEEDS[deed](*arguments)
    except HoldfastError as error:
        tell(deed, type(error).__name__)


if __name__ == "__main__":
    main()
