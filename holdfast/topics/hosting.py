"""The broker of a cluster's folder: who may use it, and how it is kept alive.

    DIR/topics/           its state, and its address in `server.json`
    DIR/topics-access/    its users and, where other machines reach it, its certificate

Passwords and certificate are made from the secret of the coordination plane: whoever has that may
do everything, on any machine of the cluster, and nothing is handed out or asked for. Workers get
a password of their own, of which the secret cannot be computed: they use topics, and do not change
what the system tells of itself.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.supervise import supervisor, wanted
from holdfast.supervise.records import Process, processes
from holdfast.system import disk
from holdfast.system.extras import require_extra
from holdfast.topics.address import TopicsAddress
from holdfast.wire.errors import Occupied
from holdfast.wire.handshake import derived

if TYPE_CHECKING:
    from collections.abc import Mapping

KIND: Final = "topics"
NAME: Final = "broker"
OWNER: Final = "holdfast"
WORKER: Final = "holdfast-worker"
FOLDER: Final = "topics"
# In a worker's folder.
PASSWORD_NAME: Final = "topics-password"  # noqa: S105  (a file's name)
TRUST_NAME: Final = "topics-trust.pem"
_ACCESS: Final = "topics-access"
_USERS: Final = "users"
_IDENTITY: Final = "identity.pem"


def check_installed() -> None:
    """`MissingExtra`, with the command that brings them, if the broker's packages are not there."""
    require_extra("google_crc32c", "topics")  # the one that it needs at once


def owner_password(secret: str) -> str:
    """The password of the cluster's own processes, and of its owner's commands."""
    return derived(secret.encode(), "password of topics").hex()


def worker_password(secret: str) -> str:
    return derived(secret.encode(), "password of topics for workers").hex()


def trust_pem(secret: str) -> str:
    """Whose certificates the broker shows, where it speaks TLS."""
    return _certified(secret)[1].decode()


def address_at(listen: str, *, encrypts: bool) -> TopicsAddress:
    """How a broker of ours is reached; without a password."""
    if not encrypts:
        return TopicsAddress((listen,))
    # Its authority is the cluster's own: whatever has that signature is the broker.
    return TopicsAddress((listen,), security="ssl", verify="ca")


def as_owner(address: TopicsAddress, secret: str) -> TopicsAddress:
    """The cluster's own broker, for whoever has the plane's secret."""
    trust = trust_pem(secret) if address.encrypts else None
    return address.with_password(OWNER, owner_password(secret), ca_pem=trust)


def equip_worker(address: TopicsAddress, folder: Path, secret: str | None) -> TopicsAddress:
    """The address for a worker, with what it shows there in its own folder. `secret`: of the plane,
    if the broker is the cluster's own; else the worker gets what the address itself names."""
    if secret is not None:
        address = address.with_password(WORKER, worker_password(secret))
        files = {PASSWORD_NAME: worker_password(secret)}
        if address.encrypts:
            files[TRUST_NAME] = trust_pem(secret)
    elif address.logs_in:
        files = {PASSWORD_NAME: str(address.client_settings()["sasl.password"])}
    else:
        files = {}
    for name, text in files.items():
        # Not synced: a worker does not outlive its machine.
        (folder / name).unlink(missing_ok=True)
        with disk.private(folder / name, "wb") as file:
            file.write(text.encode())
    password = folder / PASSWORD_NAME if PASSWORD_NAME in files else None
    trust = folder / TRUST_NAME if TRUST_NAME in files else None
    return address.with_files(password, trust)


def free_port(host: str) -> int:
    """One where nobody listens now. `Occupied`: this machine cannot listen there."""
    try:
        with socket.create_server((host.strip("[]"), 0)) as listener:
            port: int = listener.getsockname()[1]
            return port
    except OSError as error:
        raise Occupied(
            f"a broker of topics cannot listen on {host}", why=str(error), fix="holdfast status"
        ) from error


def is_free(listen: str) -> bool:
    host, _, port = listen.rpartition(":")
    try:
        with socket.create_server((host.strip("[]"), int(port))):
            return True
    except OSError:
        return False


def lives(folder: Path) -> bool:
    """Whether the broker of this cluster folder runs."""
    return any(one.kind == KIND for one in processes(folder))


def keep(folder: Path, listen: str, secret: str, *, encrypts: bool) -> bool:
    """From now on the supervisor of this folder keeps a broker alive that listens there. To be
    called in `wanted.alone`. False: no supervisor keeps anything here, so there is none."""
    known: Mapping[str, wanted.WantedProcess] = wanted.read(folder)
    if not known:
        return False
    check_installed()
    words = command(folder, listen, secret, encrypts=encrypts)
    one = known.get(f"{KIND} {NAME}")
    # The interpreter is the one of whoever asked first.
    if one is None or one.command[1:] != words[1:]:
        wanted.want(folder, [(Process(KIND, NAME, 0, 0, ""), words)])
    supervisor.ensure(folder)
    return True


def command(folder: Path, listen: str, secret: str, *, encrypts: bool) -> tuple[str, ...]:
    """How it is started; what it reads is written."""
    access = folder / _ACCESS
    access.mkdir(mode=0o700, exist_ok=True)
    users = f"{OWNER} {owner_password(secret)} super\n{WORKER} {worker_password(secret)} member\n"
    _write(access / _USERS, users.encode())
    words = ["--cluster", str(folder), "--data", str(folder / FOLDER), "--listen", listen]
    words += ["--sasl-users", str(access / _USERS)]
    if encrypts:
        _write(access / _IDENTITY, _certified(secret)[0])
        words += ["--tls-cert", str(access / _IDENTITY)]
    return (sys.executable, "-m", "holdfast.topics.broker", *words)


def _write(path: Path, data: bytes) -> None:
    """All of it or nothing. Not synced: it is written again whenever a coordinator starts."""
    draft = path.with_suffix(".tmp")
    disk.draft(draft, data)
    draft.replace(path)


def _certified(secret: str) -> tuple[bytes, bytes]:
    from holdfast.system.job_certificates import certified  # noqa: PLC0415 - few clusters need it

    return certified(derived(secret.encode(), "TLS of topics"))
